"""The tools as a server of the Model Context Protocol, on standard input and output.

It reads and answers; it writes no file, opens no connection, and ends with its client.
"""

from __future__ import annotations

from functools import partial
from threading import Event
from typing import Any, Final

from chopper_core.answers.extras import extra
from chopper_core.answers.guide import glossary, guide
from chopper_core.answers.tools import DATA_NOTE, TOOLS, Tool, Toolbox
from chopper_core.util import debug
from chopper_core.util.errors import ChopperError
from chopper_core.util.escape import clean
from chopper_core.util.memory import is_out_of_memory, memory_error
from chopper_core.util.progress import Cancelled, stop_unwanted, work_while

GUIDE: Final = "chopper://guide"
GLOSSARY: Final = "chopper://glossary"
INSTRUCTIONS: Final = (
    "Traces of LLM training, answered with units, addresses and bounds. Call open first, then "
    f"findings; read {GUIDE} for the order of work. Cite an address with every figure. A figure "
    f"that is null is unknown, not 0. In answers {DATA_NOTE}."
)


_RESOURCES: Final = {
    GUIDE: ("How to analyse a run: order of work, how to cite, ten worked questions", guide),
    GLOSSARY: ("The words of the answers", glossary),
}


def serve(toolbox: Toolbox, version: str) -> None:
    """Serve until standard input ends; raises UsageError where the package mcp is missing."""
    anyio = extra("anyio", "the server", "mcp")
    anyio.run(partial(_serve, toolbox, version))


async def _serve(toolbox: Toolbox, version: str) -> None:
    stdio = extra("mcp.server.stdio", "the server", "mcp")
    server = server_of(toolbox, version)
    async with stdio.stdio_server() as (reads, writes):
        await server.run(reads, writes, server.create_initialization_options())


def server_of(toolbox: Toolbox, version: str) -> Any:
    """The server as the package mcp has it, for any transport."""
    lowlevel = extra("mcp.server.lowlevel", "the server", "mcp")
    types = extra("mcp.types", "the server", "mcp")
    anyio = extra("anyio", "the server", "mcp")
    one_by_one = anyio.CapacityLimiter(1)

    def described(tool: Tool) -> Any:
        hints = types.ToolAnnotations(
            read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
        )
        return types.Tool(
            name=tool.name, description=tool.about, input_schema=tool.schema, annotations=hints
        )

    async def list_tools(_context: Any, _asked: Any) -> Any:
        return types.ListToolsResult(tools=[described(tool) for tool in TOOLS])

    async def call_tool(_context: Any, asked: Any) -> Any:
        wanted = Event()
        wanted.set()
        call = partial(_answer, toolbox, asked.name, asked.arguments or {}, wanted)
        try:
            text, is_error = await anyio.to_thread.run_sync(
                call, limiter=one_by_one, abandon_on_cancel=True
            )
        finally:
            wanted.clear()  # Nobody waits for a thread whose client is gone.
        content = [types.TextContent(type="text", text=text)]
        return types.CallToolResult(content=content, is_error=is_error)

    async def list_resources(_context: Any, _asked: Any) -> Any:
        found = [
            types.Resource(uri=uri, name=uri.rpartition("/")[2], description=about,
                           mime_type="text/markdown")
            for uri, (about, _) in _RESOURCES.items()
        ]  # fmt: skip
        return types.ListResourcesResult(resources=found)

    async def read_resource(_context: Any, asked: Any) -> Any:
        uri = str(asked.uri)
        if uri not in _RESOURCES:
            raise ValueError(f"no resource {clean(uri)}; there are {', '.join(_RESOURCES)}")
        text = _RESOURCES[uri][1]()
        content = types.TextResourceContents(uri=uri, mime_type="text/markdown", text=text)
        return types.ReadResourceResult(contents=[content])

    return lowlevel.Server(
        "chopper",
        version=version,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
    )


def stop_where_unwanted(step: str, done: int, total: int) -> None:
    """Progress of a call's work: it ends where the call was cancelled, or its client is gone."""
    stop_unwanted()


def _answer(
    toolbox: Toolbox, name: str, arguments: dict[str, Any], wanted: Event
) -> tuple[str, bool]:
    """The answer of a tool, or the sentence of its error; and whether it is one."""
    work_while(wanted.is_set)
    try:
        return toolbox.call(name, arguments), False
    except Cancelled:
        return "cancelled", True
    except ChopperError as error:
        return clean(str(error), is_sentence=True), True
    except Exception as error:
        if is_out_of_memory(error):
            return str(memory_error("this", error)), True
        debug.note_error(error)
        return f"internal error ({clean(f'{type(error).__name__}: {error}')})", True
