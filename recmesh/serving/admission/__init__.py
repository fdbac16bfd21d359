"""Admission at the HN: a CN asks before it sends (Prism, NSDI 2025, section 5; DESIGN: Serving).

Many CNs that send to one HN at once overflow the switch port before it: messages are lost, time out and miss their
deadlines together (incast). So the HN grants: at most a window of bytes is on its way to it, the window follows the
congestion that it measures, asks wait by deadline, and one that cannot be in time is refused at once.

- `messages`, `codec`: what is said, and its bytes. `ports`: the seam to a transport.
- `domain`: the rules, pure; time and randomness are arguments.
- `broker`: the HN's side. `client`: the CN's. `fleet`: a CN before several HNs: choice, ejection, hedging.
- `tcp`: a reference transport.

How to plug in a transport, on the HN:

    broker = Broker(Settings(bandwidth_bytes_per_s=3e9), send=lambda peer, message: link[peer].write(encode(message)))
    async with broker:                                  # its timers run
        broker.receive(peer, decode(data))              # each control message of a CN
        if broker.arrived(peer, request):               # the message is here, whole
            answer = await compute(...)
            broker.computed(model, seconds)             # so that deadlines leave time for it
        broker.lost(peer)                               # the link broke

and on the CN, one client per link:

    client = Client(send=lambda message: link.write(encode(message)))
    client.receive(decode(data))                        # each control message of the HN
    async with client.admit("ads", len(payload), left_s=deadline_s - now) as request:
        await link.send_payload(request, payload)       # may be as large as was asked, not larger
    client.lost()                                       # the link broke

`Refused.reason` tells why; `reason.elsewhere` whether another HN is worth asking. A transport whose HN cannot see
arrivals (one-sided writes) sends `Sent` after the last byte instead of calling `arrived`.
"""
