"""The reader of tables: streams, compression, encodings, columns and their types, losses."""
