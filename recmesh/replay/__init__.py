"""A time-stamped file as a live stream: rows are read, spread over partitions by key, and sent when their time comes.

    rows     files of any format, in order, as Arrow tables with event times
    pace     when a row is due (pure)
    resume   which rows a topic has already (pure)
    sinks    where messages go: JetStream, Kafka
    run      the loop
"""
