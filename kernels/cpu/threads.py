"""How native threads walk a program: functions of its steps, of waiting, and of handing out pieces.

A program is a row of steps of `STEP` bytes. A step is cut into pieces; whoever is free takes the next, and whoever
finds none left waits until all pieces of the last `group` steps, this one among them, are done. So a thread that the
system has taken off its core holds up nobody, unless it holds a piece. A step that has nothing to do costs 0.13 µs on
two threads.
"""

from __future__ import annotations

from llvmlite import ir

from kernels.cpu.ir import Function, Value, i32, i64
from kernels.cpu.isa import Target

# A step: where its function, its words and its numbers lie; the counters have cache lines of their own.
STEP = 192
FUNCTION, WORDS, PIECES, GROUP, NEXT, DONE = 0, 8, 16, 24, 64, 128

# The pool: the run's number (odd while it is on), its program, and who is about.
POOL = 512
RUN, STEPS, COUNT, ACTIVE, SLEEPERS, STOP, MUTEX, CONDITION = 0, 64, 72, 128, 192, 200, 256, 384

_SPINS_BEFORE_YIELD = 2_000
_SPINS_BEFORE_SLEEP = 4_000  # about 100 µs: longer than sampling takes between two tokens

_CALL = ir.FunctionType(ir.VoidType(), [i64, i64])
_ORDER = "seq_cst"


def _address(f: Function, at: Value) -> ir.Value:
    return f.b.inttoptr(at.v, ir.PointerType())


def _load(f: Function, at: Value) -> Value:
    return Value(f, f.b.load_atomic(_address(f, at), _ORDER, 8, typ=i64))


def _add(f: Function, at: Value, number: int) -> Value:
    """Returns what was there before."""
    return Value(f, f.b.atomic_rmw("add", _address(f, at), f.number(number).v, _ORDER))


def _pause(f: Function) -> None:
    if f.target.dot in ("avx512vnni", "avxvnni", "avx2") or f.target.triple.startswith("x86"):
        f.b.call(f.external("llvm.x86.sse2.pause", ir.VoidType(), ()), [])
    elif f.target.triple.startswith(("aarch64", "arm64")):
        f.b.call(f.external("llvm.aarch64.hint", ir.VoidType(), (i32,)), [ir.Constant(i32, 1)])


def _spin_until(f: Function, condition: object, limit: int | None = None) -> None:
    """Until `condition()` holds, giving the core away now and then; at most `limit` rounds."""
    assert callable(condition)
    head, body, after = (f.function.append_basic_block() for _ in range(3))
    rounds = f.variable(f.number(0))
    f.b.branch(head)
    f.b.position_at_end(head)
    done = condition()
    if limit is not None:
        done = done | (rounds.value >= limit)
    f.b.cbranch(done.v, after, body)
    f.b.position_at_end(body)
    _pause(f)
    rounds.value = rounds.value + 1
    if limit is None:
        with f.when((rounds.value % _SPINS_BEFORE_YIELD).equals(0)):
            f.call("sched_yield", i32)
    f.b.branch(head)
    f.b.position_at_end(after)


def _walk(f: Function, steps: Value, count: Value) -> None:
    for index in f.range(0, count):
        step = steps + index * STEP
        function = f.b.inttoptr(f.load(step + FUNCTION, i64).v, ir.PointerType())
        words, pieces = f.load(step + WORDS, i64), f.load(step + PIECES, i64)
        head, body, after = (f.function.append_basic_block() for _ in range(3))
        f.b.branch(head)
        f.b.position_at_end(head)
        piece = _add(f, step + NEXT, 1)
        f.b.cbranch((piece < pieces).v, body, after)
        f.b.position_at_end(body)
        _call_function(f, function, words, piece)
        _add(f, step + DONE, 1)
        f.b.branch(head)
        f.b.position_at_end(after)
        group = f.load(step + GROUP, i64)
        for beside in f.range(0, group):
            other = step - beside * STEP
            total = f.load(other + PIECES, i64)
            _spin_until(f, lambda other=other, total=total: _load(f, other + DONE) >= total)


def _call_function(f: Function, function: ir.Value, words: Value, piece: Value) -> None:
    f.b.call(_Typed(function, _CALL), [words.v, piece.v])


class _Typed:
    """A pointer to a function with the type that llvmlite asks of what is called."""

    def __init__(self, pointer: ir.Value, function_type: ir.FunctionType) -> None:
        self.pointer, self.function_type = pointer, function_type
        self.type = ir.PointerType()
        self.attributes = None

    def get_reference(self) -> str:
        reference: str = self.pointer.get_reference()
        return reference


def pool_start(module: ir.Module, target: Target, name: str) -> None:
    """int(pool): makes the lock and the condition; 0 if that worked."""
    f = Function(module, target, name, (i64,), i32)
    pool = f.parameters[0]
    first = f.call("pthread_mutex_init", i32, pool + MUTEX, f.number(0))
    second = f.call("pthread_cond_init", i32, pool + CONDITION, f.number(0))
    f.finish(first | second)


def run(module: ir.Module, target: Target, name: str) -> None:
    """void(pool, steps, count): the program, by whoever is awake; returns when all is done and all have left it."""
    f = Function(module, target, name, (i64, i64, i64))
    pool, steps, count = f.parameters
    for index in f.range(0, count):
        f.store(steps + index * STEP + NEXT, f.number(0))
        f.store(steps + index * STEP + DONE, f.number(0))
    f.store(pool + STEPS, steps)
    f.store(pool + COUNT, count)
    _add(f, pool + RUN, 1)
    with f.when(_load(f, pool + SLEEPERS) > 0):
        _wake(f, pool)
    _walk(f, steps, count)
    _add(f, pool + RUN, 1)
    _spin_until(f, lambda: _load(f, pool + ACTIVE).equals(0))
    f.finish()


def run_alone(module: ir.Module, target: Target, name: str) -> None:
    """void(steps, count): the program by the calling thread, piece after piece, without a word to others."""
    f = Function(module, target, name, (i64, i64))
    steps, count = f.parameters
    for index in f.range(0, count):
        step = steps + index * STEP
        function = f.b.inttoptr(f.load(step + FUNCTION, i64).v, ir.PointerType())
        words = f.load(step + WORDS, i64)
        for piece in f.range(0, f.load(step + PIECES, i64)):
            _call_function(f, function, words, piece)
    f.finish()


def _wake(f: Function, pool: Value) -> None:
    f.call("pthread_mutex_lock", i32, pool + MUTEX)
    f.call("pthread_cond_broadcast", i32, pool + CONDITION)
    f.call("pthread_mutex_unlock", i32, pool + MUTEX)


def pool_stop(module: ir.Module, target: Target, name: str) -> None:
    """void(pool): all workers return."""
    f = Function(module, target, name, (i64,))
    pool = f.parameters[0]
    _add(f, pool + STOP, 1)
    _wake(f, pool)
    f.finish()


def work(module: ir.Module, target: Target, name: str) -> None:
    """void(pool): a worker's life. It spins shortly after a run, then sleeps until the next or the end."""
    f = Function(module, target, name, (i64,))
    pool = f.parameters[0]
    seen = f.variable(f.number(0))
    head, work_block, after = (f.function.append_basic_block() for _ in range(3))

    def called() -> Value:
        run_number = _load(f, pool + RUN)
        fresh = (run_number & 1).equals(1) & (run_number.equals(seen.value) ^ 1)
        return fresh | _load(f, pool + STOP).equals(1)

    f.b.branch(head)
    f.b.position_at_end(head)
    _spin_until(f, called, _SPINS_BEFORE_SLEEP)
    with f.when(called() ^ 1):
        f.call("pthread_mutex_lock", i32, pool + MUTEX)
        _add(f, pool + SLEEPERS, 1)
        wait, wait_body, waited = (f.function.append_basic_block() for _ in range(3))
        f.b.branch(wait)
        f.b.position_at_end(wait)
        f.b.cbranch(called().v, waited, wait_body)
        f.b.position_at_end(wait_body)
        f.call("pthread_cond_wait", i32, pool + CONDITION, pool + MUTEX)
        f.b.branch(wait)
        f.b.position_at_end(waited)
        _add(f, pool + SLEEPERS, -1)
        f.call("pthread_mutex_unlock", i32, pool + MUTEX)
    f.b.cbranch(_load(f, pool + STOP).equals(1).v, after, work_block)

    f.b.position_at_end(work_block)
    _add(f, pool + ACTIVE, 1)
    number = _load(f, pool + RUN)
    with f.when((number & 1).equals(1)):  # else it ended in between
        _walk(f, f.load(pool + STEPS, i64), f.load(pool + COUNT, i64))
        seen.value = number
    _add(f, pool + ACTIVE, -1)
    f.b.branch(head)

    f.b.position_at_end(after)
    f.finish()
