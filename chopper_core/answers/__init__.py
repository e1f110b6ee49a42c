"""Answers for people and programs: runs opened, views asked, tables, SQL, and a server of all."""
