"""Raw columns of requests, made into a model's inputs by the transform that its `model.json` carries.

What is here is the training's own transform (`recmesh.data.transform`), in a process of its own: a gateway stays free
for requests, and a feature's function that hangs takes the threads of its own model alone; one that raises anything at
all is answered. One that ends the process (a crash in compiled code) fails what is in it; the process starts anew.
"""
