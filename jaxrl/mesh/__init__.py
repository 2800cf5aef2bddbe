"""Devices: the mesh, where arrays lie on it, and several processes as one run.

`mesh` maps logical axes of arrays to mesh axes; `layouts` says where a pass of the decoder keeps
its arrays; `distributed` joins processes; `buckets` rounds lengths to few shapes, so that few
programs are compiled.
"""
