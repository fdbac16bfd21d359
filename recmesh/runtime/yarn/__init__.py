"""Apache Hadoop YARN for asyncio services, and for what runs in its containers.

    client.py      ResourceManager, Services and NodeManager by their REST APIs
    board.py       notes in a folder that jobmaster and containers share
    container.py   what a container runs: it looks its order up, runs it, and notes the end

Nothing is imported here: a container needs no client, and stays small.
"""
