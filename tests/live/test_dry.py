"""The parts of the live run that need no cluster: `python3 -m unittest discover -s tests/live`."""

import contextlib
import io
import os
import tempfile
import unittest

import complaints
import run


class Complaints(unittest.TestCase):
    def test_only_warnings_and_errors_are_complaints_in_either_form(self):
        console = "2026-01-02T03:04:05Z\tERROR\tscalehandler\terror getting scale decision\t{\"error\": \"x\"}"
        self.assertIn("error getting scale decision", complaints.complaint(console))
        self.assertIsNone(complaints.complaint(console.replace("ERROR", "INFO")))
        as_json = '{"level":"error","msg":"error getting metric spec","error":"got empty metric spec"}'
        self.assertEqual(complaints.complaint(as_json), "error getting metric spec got empty metric spec")
        self.assertIsNone(complaints.complaint(as_json.replace('"error","msg"', '"info","msg"')))
        self.assertIsNotNone(complaints.complaint("E0102 03:04:05.000000       1 reflector.go:1] failed"))
        self.assertIsNone(complaints.complaint("github.com/kedacore/keda/v2/pkg/scaling.(*scaleHandler).x"))

    def test_what_a_kill_explains_is_expected_then_and_at_no_other_time(self):
        self.assertIn("KEDA's own", complaints.reason("got empty metric spec", {"disturbed"}))
        self.assertIsNone(complaints.reason("got empty metric spec", {"faulted"}))
        self.assertIsNone(complaints.reason("metric value is negative", {"disturbed", "faulted"}))
        spans = complaints.Disturbances()
        self.assertFalse(spans.cover(100))
        spans.begin(100)
        self.assertTrue(spans.cover(500))
        spans.end(500)
        self.assertTrue(spans.cover(500 + spans.SETTLED_S))
        self.assertFalse(spans.cover(500 + spans.SETTLED_S + 2))
        self.assertFalse(spans.cover(90))

    def test_an_event_has_its_time(self):
        event = {"type": "Warning", "reason": "KEDAScalerFailed", "message": "no", "metadata": {},
                 "lastTimestamp": "1970-01-01T00:01:40Z"}
        self.assertEqual(complaints.of_event(event), ("KEDAScalerFailed: no", 100))
        self.assertIsNone(complaints.of_event({**event, "type": "Normal"}))

    def test_a_log_is_read_from_where_the_run_began_and_whole_lines_only(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "log")
            with open(path, "w", encoding="utf-8") as log:
                log.write("old\n")
            tail = complaints.Tail(path)
            with open(path, "a", encoding="utf-8") as log:
                log.write("one\ntw")
            self.assertEqual(tail.lines(), ["one"])
            with open(path, "a", encoding="utf-8") as log:
                log.write("o\n")
            self.assertEqual(tail.lines(), ["two"])
            with open(path, "w", encoding="utf-8") as log:
                log.write("new\n")
            self.assertEqual(tail.lines(), ["new"])


class Lab:
    """Says nothing and has nothing to complain of."""

    def __init__(self):
        self.said, self.unexpected = [], []

    def say(self, text):
        self.said.append(text)

    def look_for_complaints(self):
        pass


def holds(_lab):
    return True


def fails(_lab):
    return False


def is_left_out(_lab):
    raise run.Skipped("nothing to do it with")


class Verdicts(unittest.TestCase):
    def verdict(self, scenarios, unexpected=()):
        lab = Lab()
        lab.unexpected = list(unexpected)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            status = run.conclude(lab, run.play(lab, scenarios))
        return status, out.getvalue(), lab.said

    def test_a_skipped_scenario_is_neither_held_nor_failed_and_is_counted(self):
        status, out, said = self.verdict([holds, is_left_out])
        self.assertEqual(status, 0)
        self.assertIn("1 held, 0 failed, 1 skipped", out)
        self.assertIn("== is_left_out: skipped: nothing to do it with", said)
        self.assertFalse([line for line in said if "is_left_out: holds" in line])

    def test_one_that_fails_fails_the_run(self):
        self.assertEqual(self.verdict([fails, holds])[0], 1)

    def test_a_complaint_that_nothing_explains_fails_the_run(self):
        status, out, _ = self.verdict([holds], ["KEDA's log: metric value is negative"])
        self.assertEqual(status, 1)
        self.assertIn("metric value is negative", out)

    def test_a_run_that_held_nothing_is_no_success(self):
        self.assertEqual(self.verdict([is_left_out])[0], 1)


class Rise(unittest.TestCase):
    def test_the_bound_is_a_tick_a_poll_and_the_hpas_sync(self):
        self.assertEqual(run.ORDER_WITHIN_S, run.TICK_S + run.POLL_S + run.HPA_SYNC_S)

    def test_a_queue_is_read_off_the_engines_own_page(self):
        page = 'vllm:num_requests_waiting{engine="0"} 2.0\nvllm:num_requests_waiting{engine="1"} 1.0\n' \
               'vllm:num_requests_waiting_by_reason{reason="capacity"} 9.0\n'
        self.assertEqual(run.waiting_on(page), 3.0)
        self.assertEqual(run.waiting_on("# nothing\n"), 0.0)

    def test_what_is_seen_is_dated_once_each(self):
        moments = iter([(0.0, {"spec": 1, "want": 1}), (2.0, {"spec": 1, "want": 1}), (3.0, {"spec": 1, "want": 2}),
                        (0.0, {"spec": 2, "want": 2})])
        clock = iter(range(100))
        rise = run.dated(lambda: next(moments), lambda: next(clock), lambda: None)
        self.assertEqual((rise["queued"], rise["wanted"], rise["ordered"]), (1, 2, 3))


if __name__ == "__main__":
    unittest.main()
