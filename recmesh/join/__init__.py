"""Samples and their labels, joined by id within a window: each sample once, whatever dies and whenever.

    marks        how far event time has come, partition by partition (pure)
    domain       which label belongs to which sample, and when a sample goes out (pure)
    positions    what of the input is settled, and from where it must be read again (pure)
    messages     JSON messages as events, joined samples as messages (pure)
    inputs       partitions of a topic, read side by side in order of event time
    topics, files    where joined samples go
    record       positions, written down by compare-and-set
    process      the loop: read, decide, send, write down

What is settled is written down after it is stored. What was stored after the last such note is found at the ends of the
output topics when a process starts, or, of files, written again under the same names. A sample is settled at the
moment when it is stored; its labels with it.
"""
