"""What answers mean, without a burst buffer."""

import errno
import json
import pickle

import pytest

import forebay
from forebay import _command
from forebay._types import Progress

LINE = {
    "movement": "stage-out",
    "outcome": None,
    "counting": False,
    "files_total": 4,
    "files_done": 1,
    "files_skipped": 0,
    "files_failed": 0,
    "bytes_total": 400,
    "bytes_done": 100,
    "elapsed_s": 2.0,
    "failures": [],
    "left": [],
}


def _ended(code, stderr=b"", **changed):
    answers = _command.Answers("stage-out")
    assert answers.movement(json.dumps(LINE).encode()) is not None
    assert answers.movement(json.dumps({**LINE, "outcome": "finished", **changed}).encode()) is None
    return answers.error(code, stderr)


def test_progress_is_reckoned():
    now = Progress("stage-out", False, 4, 1, 0, 0, 400, 100, 2.0, ())
    assert (now.fraction, now.rate_bytes_per_s, now.eta_s) == (0.25, 50.0, 6.0)
    nothing = Progress("stage-out", True, 0, 0, 0, 0, 0, 0, 0.0, ())
    assert (nothing.fraction, nothing.rate_bytes_per_s, nothing.eta_s) == (0.0, 0.0, None)
    files = Progress("stage-out", False, 4, 1, 0, 0, 0, 0, 1.0, ())
    assert (files.fraction, files.eta_s) == (0.25, None)


def test_each_exit_code_is_an_exception():
    failure = {"path": "/bb/x", "errno": "ENOSPC", "error": "full"}
    assert _ended(0) is None
    partial = _ended(3, failures=[failure], files_failed=300)
    assert type(partial) is forebay.PathsError and "300 paths failed" in str(partial)
    assert (partial.errno, partial.filename) == (errno.ENOSPC, "/bb/x")
    timed_out = _ended(4, outcome="timed-out", left=[{"path": "\ufffd", "path_base16": "2f62ff"}])
    assert type(timed_out) is forebay.TimedOutError and timed_out.left == ("/b\udcff",)
    assert type(_ended(5, failures=[failure])) is forebay.VerificationError
    assert type(_ended(130, outcome="interrupted")) is forebay.CancelledError
    assert type(_ended(3, outcome="cancelled")) is forebay.CancelledError
    odd = _ended(3, failures=[{"path": "/x", "errno": 4095, "error": "odd"}])
    assert odd.errno == 4095 and odd.failures[0].errno_name == "4095"
    for error in (partial, timed_out):
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.left, again.failures) == (str(error), error.left, error.failures)


def test_the_lines_decide_where_the_exit_code_says_nothing():
    failure = {"path": "/bb/x", "errno": "EINVAL", "error": "no version"}
    for code in (0, _command.LOST_CODE):
        assert _ended(code) is None and _ended(code, outcome="queued") is None
        failed = _ended(code, failures=[failure], files_failed=1)
        assert type(failed) is forebay.PathsError and (failed.errno, failed.exit_code) == (errno.EINVAL, 3)
        assert type(_ended(code, files_failed=2)) is forebay.PathsError
        damaged = {**failure, "errno": "EBADMSG"}
        assert type(_ended(code, failures=[damaged], files_failed=1)) is forebay.VerificationError
        assert type(_ended(code, outcome="timed-out")) is forebay.TimedOutError
        assert type(_ended(code, outcome="interrupted")) is forebay.CancelledError
        assert type(_ended(code, outcome="cancelled")) is forebay.CancelledError
        # It has no last line: it was killed, or is another program.
        assert _command.Answers("stage-out").error(code, b"").errno == errno.EIO
        where = _command.Answers("where")
        assert where.error(code, b"") is None
        where.file(json.dumps({"failure": failure}).encode())
        assert type(where.error(code, b"")) is forebay.PathsError
    assert "code is lost" in str(_command.Answers("where").error(_command.LOST_CODE, b"panicked"))
    # The other way round: what looked complete was not.
    assert "exit code 101" in str(_ended(101)) and "signal 11" in str(_ended(-11))


def test_a_command_that_gives_no_answer_is_an_error_with_its_words():
    answers = _command.Answers("stage-out")
    error = answers.error(1, b"forebay: unexpected argument '--json-lines' found; see --help\n")
    assert "unexpected argument" in str(error) and error.errno == errno.EIO
    assert "signal 9" in str(_command.Answers("where").error(-9, b""))
    fatal = _command.Answers("where")
    assert fatal.file(b'{"fatal": {"errno": "ENOTCONN", "error": "gone"}}') is None
    assert type(fatal.error(1, b"")) is forebay.NotRunningError
    usage = _command.Answers("where")
    usage.file(b'{"fatal": {"errno": null, "error": "no paths given"}}')
    assert usage.error(1, b"").errno == errno.EINVAL
    with pytest.raises(forebay.ForebayError, match="holds data only"):
        _command.status_from(0, b'{"version": "0.1.0", "data_server": {}}', b"")


def test_a_message_has_one_line_for_each_path():
    odd = forebay.Failure("/bb/a\nb\udcff\x1b[31m", errno.EIO, "lost")
    line = str(forebay.PathsError(errno.EIO, "1 path failed", failures=(odd,))).splitlines()[1]
    assert line.strip() == r"/bb/a\nb\udcff\x1b[31m: lost"
    many = forebay.PathsError(errno.EIO, "failed", failures=(odd,) * 25)
    assert str(many).splitlines()[-1].strip() == "and 5 more"


def test_durations_are_never_none_at_all():
    assert _command.duration(1.5) == "1500ms" and _command.duration(1e-9) == "1ms"
    assert _command._unescape(rb"/b\040b\134040\011") == b"/b b\\040\t"
