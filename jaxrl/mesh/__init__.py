"""Devices: the mesh, the sharding of arrays, and runs of several processes.

`mesh` maps logical axes of arrays to mesh axes; `layouts` says where a pass of the decoder keeps
its arrays; `distributed` joins processes; `buckets` rounds lengths to few shapes, so that few
programs are compiled.
"""
