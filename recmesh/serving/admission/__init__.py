"""Admission at the HN: a CN asks before it sends (Prism, NSDI 2025, section 5; DESIGN: Serving).

Many CNs that send to one HN at once overflow the switch port before it: messages are lost, time out and miss their
deadlines together (incast). So the HN grants: at most a window of bytes is on its way to it, the window follows the
congestion that it measures, asks wait by deadline, and one that cannot be in time is refused at once.

- `messages`, `codec`, `frames`: what is said, its bytes, and how these travel between CN and HN.
- `domain`: the rules, pure; time and randomness are arguments. Of admission itself, and of a CN before several HNs:
  choice, ejection, hedging.

The rules are given a clock and connections by `serving.hn.desk` on the HN, by `serving.cn` (`asking`, `fleet`,
`dispatch`) on the CN. `Refused.reason` tells why a message may not be sent; `reason.elsewhere` whether another HN is
worth asking. A transport whose HN cannot see arrivals (one-sided writes) sends `Sent` after the last byte.
"""
