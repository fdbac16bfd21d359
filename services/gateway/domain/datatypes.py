"""The protocol's datatypes: `recmesh.serving` owns them, since CN and HN speak them too."""

from recmesh.serving.datatypes import DATATYPES, Datatype, Kind, datatype, from_dtype, of_array

__all__ = ["DATATYPES", "Datatype", "Kind", "datatype", "from_dtype", "of_array"]
