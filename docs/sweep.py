#!/usr/bin/env python3
"""The rate that a path carries: packets in at one interface, counted at another.

    sweep.py FROM TO [PACKETS]

Doubles the rate until packets are lost, and prints a line for each."""

import json
import signal
import subprocess
import sys
import time


def start(*args):
    return subprocess.Popen(["towpath", *args, "--json"], stdout=subprocess.PIPE, text=True)


def records(process):
    """One object a line: type is live, every --interval, and at the end summary."""
    return map(json.loads, process.stdout)


def summary(process):
    """The last record, once the process has ended."""
    *_, last = [None, *records(process)]
    if process.wait() != 0:
        # Failures name the port and a hint. Wrong usage has no summary; standard error has it.
        sys.exit("\n".join(last["failures"]) if last else 1)
    return last


def step(source, target, rate, packets):
    sink = start("sink", f"packet:{target}", "--verify", "--expect", str(packets), "--interval", "200ms")
    try:
        # It receives from its first record on.
        next(records(sink), None) or summary(sink)
        sent = summary(start("gen", f"packet:{source}", "--rate", str(rate), "--count", str(packets)))
        time.sleep(0.5)  # what is on its way arrives
    finally:
        sink.send_signal(signal.SIGINT)
    verified = summary(sink)["verified"][0]
    return sent["ports"][1]["tx"], verified["lost"] + verified["outstanding"]


def main(source, target, packets=20_000):
    rate, lost = 10_000, 0
    while lost == 0 and rate <= 1_000_000:
        tx, lost = step(source, target, rate, int(packets))
        print(f"asked {rate:>9}/s  sent {tx['packets']:>9} at {tx['packets_per_second']:>11.0f}/s  lost {lost}")
        rate *= 2


main(*sys.argv[1:])
