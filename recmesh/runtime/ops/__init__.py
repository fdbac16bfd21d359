"""A live page for each service, and what probes and Prometheus read."""

from recmesh.runtime.loopback import is_loopback
from recmesh.runtime.ops import text
from recmesh.runtime.ops.bars import Bar, Bars, Picture
from recmesh.runtime.ops.history import Recorder
from recmesh.runtime.ops.http import HttpServer
from recmesh.runtime.ops.panels import Cell, Chart, Log, Page, Plots, Table, Tile, Tiles, Tone, state
from recmesh.runtime.ops.server import OpsServer, router

__all__ = [
    "Bar", "Bars", "Cell", "Chart", "HttpServer", "Log", "OpsServer", "Page", "Picture", "Plots", "Recorder", "Table",
    "Tile", "Tiles", "Tone", "is_loopback", "router", "state", "text",
]
