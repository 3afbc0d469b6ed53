import { expect, test } from "bun:test";
import fc from "fast-check";
import type { WorkerId } from "../../../src/core/index.ts";
import { PULL_PRIORITIES } from "../../../src/peers/index.ts";
import type { Answer, Behaviour } from "../../support/scripted-peers.ts";
import { OTHER_SPACE, PullKit, SPACE } from "./pull-kit.ts";

const HOSTS = ["a", "b", "c"];
const LIMITS = {
  bytesMax: 6_000,
  peerBytesMax: 4_000,
  namespaceBytesMax: 5_000,
  itemsMax: 3,
  progressMs: 200,
  dialMs: 50,
  cooldownMs: 100,
  cooldownMaxMs: 400,
};
const DEADLINE_MS = 600;

const host = fc.constantFrom(...HOSTS);
const answer: fc.Arbitrary<Answer> = fc.oneof(
  { weight: 8, arbitrary: fc.constant("came" as const) },
  fc.constantFrom("absent", "hang", "break", "corrupt", "otherDigest" as const),
  fc.record({ busyMs: fc.nat(300) }),
  fc.record({ tooLong: fc.nat(6_000) }),
  fc.record({ refused: fc.constant("no") }),
);
const behaviour: fc.Arbitrary<Behaviour> = fc.record({
  answer,
  afterMs: fc.oneof(fc.nat(4), fc.nat(60)),
  trickle: fc.oneof({ weight: 9, arbitrary: fc.constant(0) }, fc.nat(300)),
});

const pull = fc.record({
  op: fc.constant("pull" as const),
  blocks: fc.array(fc.nat(11), { maxLength: 6 }),
  deadlineMs: fc.nat(DEADLINE_MS),
  abortMs: fc.option(fc.nat(100), { freq: 4 }),
  priority: fc.constantFrom(...PULL_PRIORITIES),
  sources: fc.uniqueArray(host, { maxLength: 2 }),
  stopAtMiss: fc.boolean(),
  other: fc.boolean(),
});
const step = fc.oneof(
  { weight: 6, arbitrary: pull },
  { weight: 4, arbitrary: fc.record({ op: fc.constant("wait" as const), ms: fc.nat(80) }) },
  fc.record({ op: fc.constant("kill" as const), host }),
  fc.record({ op: fc.constant("cut" as const), host, way: fc.constantFrom("stream", "quic") }),
  fc.record({ op: fc.constant("hangDials" as const), host, way: fc.constantFrom("stream") }),
  fc.record({ op: fc.constant("heal" as const), host }),
  fc.record({ op: fc.constant("restart" as const), host }),
  fc.record({
    op: fc.constant("behave" as const),
    host,
    how: fc.array(behaviour, { minLength: 1 }),
  }),
  fc.record({
    op: fc.constant("length" as const),
    host,
    bytes: fc.integer({ min: 1, max: 5_000 }),
  }),
  fc.record({ op: fc.constant("usual" as const), bytes: fc.constantFrom(0, 500, 1_000, 2_000) }),
);
type Step = typeof step extends fc.Arbitrary<infer T> ? T : never;

/** Runs steps and checks the invariants after each. */
class Run {
  readonly kit: PullKit;
  readonly problems: string[] = [];
  readonly pulls: Promise<void>[] = [];
  open = 0;

  constructor(mirror: boolean) {
    this.kit = new PullKit({
      hosts: HOSTS,
      transports: ["stream", "quic"],
      limits: { ...LIMITS, mirrorPulls: mirror },
      stopMs: 7,
    });
  }

  async do(todo: Step): Promise<void> {
    const { kit } = this;
    if (todo.op === "pull") return this.pull(todo);
    if (todo.op === "wait") return this.wait(todo.ms);
    if (todo.op === "usual") {
      kit.blocks.usual = todo.bytes;
      return;
    }
    const peer = kit.host(todo.host);
    if (todo.op === "kill") peer.breakLinks();
    if (todo.op === "cut") peer.unreachable.add(todo.way as "stream");
    if (todo.op === "hangDials") peer.dialHangs.add(todo.way as "stream");
    if (todo.op === "length") peer.bytes = todo.bytes;
    if (todo.op === "heal") {
      peer.unreachable.clear();
      peer.dialHangs.clear();
    }
    if (todo.op === "restart") {
      peer.incarnation++;
      peer.breakLinks();
      kit.members.tell("restarted", kit.members.get(peer.worker)!);
    }
    if (todo.op === "behave") {
      let asked = 0;
      peer.behave = () => todo.how[asked++ % todo.how.length]!;
    }
  }

  pull(todo: Extract<Step, { op: "pull" }>): void {
    const { kit } = this;
    const stop = new AbortController();
    if (todo.abortMs !== null) kit.clock.after(todo.abortMs, () => stop.abort());
    const untilMs = kit.clock.monotonicMs() + todo.deadlineMs;
    this.open++;
    const { deadlineMs, priority, stopAtMiss } = todo;
    const sources = todo.sources as WorkerId[];
    const options = { deadlineMs, priority, stopAtMiss, sources, signal: stop.signal };
    const pulling = kit.pull(todo.blocks, options, todo.other ? OTHER_SPACE : SPACE);
    const ended = pulling.then((outcomes) => {
      this.open--;
      if (kit.clock.monotonicMs() > untilMs + 1) this.problems.push("later than its deadline");
      if (outcomes.length !== todo.blocks.length) this.problems.push("an outcome is missing");
      const first = outcomes.findIndex(({ kind }) => kind !== "ok");
      const behind = first < 0 ? [] : outcomes.slice(first);
      if (
        stopAtMiss &&
        outcomes[first]?.kind !== "late" &&
        behind.some(({ kind }) => kind === "ok")
      )
        this.problems.push("something came behind a miss");
      for (const outcome of outcomes) if (outcome.kind === "ok") outcome.arrival.release(true);
    });
    this.pulls.push(ended);
  }

  async wait(ms: number): Promise<void> {
    for (let i = 0; i < ms; i++) {
      await this.kit.clock.advanceAsync(1);
      this.look();
    }
  }

  look(): void {
    const { puller } = this.kit;
    if (puller.stats.inFlightBytes > LIMITS.bytesMax) this.problems.push("more bytes than allowed");
    for (const { worker, inFlightBytes } of puller.peers())
      if (inFlightBytes > LIMITS.peerBytesMax) this.problems.push(`more than ${worker} may send`);
  }

  async end(): Promise<void> {
    await this.wait(DEADLINE_MS + 2);
    if (this.open > 0) this.problems.push(`${this.open} pulls never ended`);
    this.problems.push(...(await this.kit.leftovers()));
    await Promise.all(this.pulls);
  }
}

test("whatever peers do: all that was taken is given back once, and every wait ends", async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 30 }), fc.boolean(), async (steps, mirror) => {
      const run = new Run(mirror);
      for (const one of steps) await run.do(one);
      await run.end();
      expect(run.problems).toEqual([]);
    }),
    { numRuns: Number(process.env.PULL_RUNS ?? 120) },
  );
});
