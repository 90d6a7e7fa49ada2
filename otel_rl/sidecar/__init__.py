"""The process beside the trainers: it ships their journals and samples the node. It needs no torch."""
