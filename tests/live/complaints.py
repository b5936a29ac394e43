"""What KEDA and the scaler complain of, in KEDA's log and in the ScaledObject's events, and what of it is to be
expected.

Judges texts and times only; reads nothing itself.
"""

import datetime
import json
import re

# Each with the only time at which it may be said, and the reason why it is nobody's fault.
EXPECTED = [
    (r"got empty metric spec", "disturbed",
     "KEDA's own words for a scaler that cannot be asked, while the scaler or KEDA is killed and starts"),
    (r"connection refused|error reading from server|transport is closing|connection reset|Unavailable|unavailable",
     "disturbed", "the scaler's process is gone, or KEDA's own parts are"),
    (r"context canceled|leader election lost|Reconciler error|error getting scaler|error getting metric",
     "disturbed", "what KEDA was doing while it or the scaler was killed"),
    (r"error (receiving|reading|running).*stream|Error running|error getting external push", "disturbed",
     "the stream to a scaler that was killed"),
    (r"the object has been modified; please apply your changes to the latest version", "always",
     "two of KEDA's own writers; it tries again"),
    (r"odd number of arguments passed as key-value pairs|^filename no certs appended", "always",
     "KEDA takes each file beside its own certificate for one, the key too"),
    (r"^error running StreamIsActive .*context canceled", "always",
     "KEDA itself ends the stream of a ScaledObject that is edited"),
    (r"no pooled connection for scaler address", "disturbed", "KEDA has given the killed scaler's connection up"),
    (r"^Degraded: |^ExternalLoss: ", "faulted",
     "the scaler's own words for engines or a Prometheus that were hung or killed"),
    (r"unable to get hpa|horizontalpodautoscalers?.* not found", "disturbed", "KEDA makes it when it starts"),
]


def reason(text, standing):
    """Why a complaint is expected, with what stands just then (`disturbed`, `faulted`); None where it is not."""
    for pattern, when, why in EXPECTED:
        if (when == "always" or when in standing) and re.search(pattern, text):
            return why
    return None


def complaint(line):
    """The text of a log line at warning or above; None of any other."""
    if line.startswith("{"):
        try:
            entry = json.loads(line)
        except ValueError:
            return None
        if str(entry.get("level", "")).lower() not in ("warn", "warning", "error", "dpanic", "panic", "fatal"):
            return None
        return f"{entry.get('msg', '')} {entry.get('error', '')}".strip()
    words = line.split("\t")
    if len(words) > 2 and words[1].strip().upper() in ("WARN", "ERROR", "DPANIC", "PANIC", "FATAL"):
        return " ".join(words[2:])
    # klog, as the API machinery below KEDA writes.
    return line if re.match(r"[WEF]\d{4} ", line) else None


def of_event(event):
    """The text and the time of an event that complains; None of any other."""
    if event.get("type") != "Warning":
        return None
    stamp = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp")
    return f"{event.get('reason')}: {event.get('message')}", seconds(stamp)


def seconds(stamp):
    return datetime.datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()


class Disturbances:
    """When something was being killed or hung: from then until all have had time to find their feet."""

    SETTLED_S = 45  # KEDA's backoff and its first poll after a start

    def __init__(self):
        self.spans = []

    def begin(self, now):
        self.spans.append([now, None])

    def end(self, now):
        self.spans[-1][1] = now + self.SETTLED_S

    def cover(self, moment):
        # Events have whole seconds.
        return any(start - 1 <= moment and (end is None or moment <= end + 1) for start, end in self.spans)


class Tail:
    """What a log file has got since the last look."""

    def __init__(self, path):
        self.path, self.at, self.half = path, 0, ""
        with open(path, "rb") as file:
            self.at = file.seek(0, 2)

    def lines(self):
        with open(self.path, "rb") as file:
            if file.seek(0, 2) < self.at:
                self.at, self.half = 0, ""  # written anew by a restart
            file.seek(self.at)
            new = file.read()
        self.at += len(new)
        *whole, self.half = (self.half + new.decode("utf-8", "replace")).split("\n")
        return whole
