import type { WorkerId } from "../../core/index.ts";
import type { Target } from "../workers.ts";
import { type CommandQueue, isSomeDone, type OrderOutcome } from "./command-queue.ts";
import type { Moment, Policy, RoutedPrompt } from "./policies.ts";
import type { BlockNamer } from "./prompt-chain.ts";
import { type Noted, RecentPrefixes, type SessionTable } from "./session-table.ts";
import type { PolicySettings } from "./settings.ts";

const SOURCES_MAX = 4;
/**
 * Maximum groups of agents. Agents in a group give blocks the same names, so they share prefixes.
 */
const GROUPS_MAX = 16;
const WAITING_MAX = 1_024;
/** Blocks of a phase's first command. Its receipt shows the block size in bytes. */
const FIRST_BLOCKS = 64;
const JOINING_MS = 30_000;
const FAILURES_MAX = 3;
const AFTER_FAILURE_MS = 5_000;

/** Warming of one worker. */
interface Phase {
  readonly target: Target;
  readonly group: string;
  readonly sinceMs: number;
  readonly untilMs: number;
  /** Block names of the latest prompts of the worker's own sessions, most recent first. */
  readonly sessions: readonly string[][];
  readonly sent: Set<string>;
  isWaiting: boolean;
  nextMs: number;
  bytes: number;
  /** Number of blocks that the worker moved, `bytes` in all. */
  moved: number;
  /** Number of consecutive commands that moved no block. */
  failures: number;
}

/**
 * Warms a worker that joined or lost its RAM contents. Fetches the most common prefixes first. If
 * the worker restarted, then fetches the latest prompts of its own sessions from its SSD. Sends one
 * command at a time, within a byte rate and a total, until the phase ends or commands have no
 * effect.
 */
export class ColdWorker implements Policy {
  readonly queue: CommandQueue;
  readonly #settings: PolicySettings["coldWorker"];
  readonly #namer: BlockNamer;
  readonly #sessions: SessionTable;
  readonly #prefixes = new Map<string, RecentPrefixes>();
  readonly #phases = new Map<WorkerId, Phase>();
  readonly #waiting = new Map<WorkerId, Target>();

  constructor(
    queue: CommandQueue,
    settings: PolicySettings["coldWorker"],
    namer: BlockNamer,
    sessions: SessionTable,
  ) {
    this.queue = queue;
    this.#settings = settings;
    this.#namer = namer;
    this.#sessions = sessions;
  }

  /** Number of workers being warmed. */
  get active(): number {
    return this.#phases.size;
  }

  routed({ chain, target }: RoutedPrompt, { kept }: Noted, { nowMs }: Moment): void {
    let prefixes = this.#prefixes.get(chain.group);
    if (prefixes === undefined) {
      if (this.#prefixes.size >= GROUPS_MAX) {
        this.queue.decline("groups");
        return;
      }
      prefixes = new RecentPrefixes(this.#settings.prefixBlocksMax);
      this.#prefixes.set(chain.group, prefixes);
    }
    prefixes.note(chain, kept, target.worker, nowMs);
  }

  workerCold(target: Target, at: Moment): void {
    if (this.#namer.group(target) === null) {
      this.queue.decline("no_names");
      return;
    }
    const known = this.#phases.get(target.worker);
    // A joining worker is reported twice: before and after its blocks are known. Start one phase.
    if (known !== undefined && at.nowMs - known.sinceMs < JOINING_MS) return;
    this.#phases.delete(target.worker);
    this.#waiting.delete(target.worker);
    if (this.#phases.size < this.#settings.workersMax) this.#begin(target, at);
    else if (this.#waiting.size < WAITING_MAX) this.#waiting.set(target.worker, target);
    else this.queue.decline("workers");
  }

  workerLeft(worker: WorkerId): void {
    this.#phases.delete(worker);
    this.#waiting.delete(worker);
  }

  tick(at: Moment): void {
    for (const [worker, phase] of this.#phases) {
      if (at.nowMs >= phase.untilMs) this.#phases.delete(worker);
      else if (!phase.isWaiting && at.nowMs >= phase.nextMs) this.#warm(phase, at);
    }
    for (const [worker, target] of this.#waiting) {
      if (this.#phases.size >= this.#settings.workersMax) return;
      this.#waiting.delete(worker);
      this.#begin(target, at);
    }
  }

  #begin(target: Target, at: Moment): void {
    const phase: Phase = {
      target,
      group: this.#namer.group(target) ?? "",
      sinceMs: at.nowMs,
      untilMs: at.nowMs + this.#settings.phaseMs,
      sessions: this.#sessionsOf(target.worker),
      sent: new Set(),
      isWaiting: false,
      nextMs: at.nowMs,
      bytes: 0,
      moved: 0,
      failures: 0,
    };
    this.#phases.set(target.worker, phase);
    this.#warm(phase, at);
  }

  /**
   * Returns block names of the latest prompts that this worker served, up to the limit of one
   * phase.
   */
  #sessionsOf(worker: WorkerId): string[][] {
    const found: string[][] = [];
    let left = this.#settings.blocksMax;
    for (const { branches } of [...this.#sessions.all()].reverse()) {
      for (const { chain, target } of branches) {
        if (target.worker !== worker || left <= 0) continue;
        found.push(chain.names(0, Math.min(left, chain.blocks)));
        left -= chain.blocks;
      }
      if (left <= 0) break;
    }
    return found;
  }

  #warm(phase: Phase, at: Moment): void {
    const { target, sent } = phase;
    const room = this.#roomOf(phase);
    if (room <= 0) {
      this.#end(phase, "budget");
      return;
    }
    const { names, sources } = this.#next(phase, room, at.nowMs);
    if (names.length === 0) return;
    const hint = sources.length === 0 ? {} : { sources };
    phase.isWaiting = true;
    const isSent = this.queue.send({
      requestId: null,
      worker: target.worker,
      command: { type: "Warm", block_keys: names, target_tier: "CPU_TIER1", ...hint },
      settled: (outcome) => this.#settled(phase, outcome, at.nowMs),
    });
    if (isSent) for (const name of names) sent.add(name);
    else phase.isWaiting = false;
  }

  #roomOf({ sent, bytes, moved }: Phase): number {
    const { blocksMax, blocksPerCommand, bytesMax } = this.#settings;
    const blocks = Math.min(blocksMax - sent.size, blocksPerCommand);
    if (moved === 0) return Math.min(blocks, FIRST_BLOCKS);
    return Math.min(blocks, Math.floor((bytesMax - bytes) / (bytes / moved)));
  }

  #next({ group, sent, sessions, target }: Phase, room: number, nowMs: number) {
    const names: string[] = [];
    const servedBy = new Map<string, number>();
    const best = this.#prefixes.get(group)?.best(this.#settings.usesMin, nowMs) ?? [];
    for (const block of best) {
      if (names.length >= room) break;
      if (block.names.every((name) => sent.has(name))) continue;
      names.push(...block.names);
      const { worker } = block;
      if (worker !== target.worker) servedBy.set(worker, (servedBy.get(worker) ?? 0) + 1);
    }
    const taken = new Set(names);
    for (const prompt of sessions) {
      for (const name of prompt) {
        if (names.length >= room) break;
        if (sent.has(name) || taken.has(name)) continue;
        taken.add(name);
        names.push(name);
      }
    }
    const sources = [...servedBy].sort((a, b) => b[1] - a[1]).slice(0, SOURCES_MAX);
    return { names, sources: sources.map(([worker]) => worker) };
  }

  #settled(phase: Phase, outcome: OrderOutcome, sentMs: number): void {
    phase.isWaiting = false;
    phase.nextMs = sentMs + 1;
    if (outcome.kind === "receipt") {
      phase.bytes += outcome.bytes;
      phase.moved += outcome.bytes > 0 ? (outcome.counts.done ?? 0) : 0;
      phase.nextMs = sentMs + (outcome.bytes / this.#settings.bytesPerSecond) * 1_000;
    }
    if (isAllThere(outcome)) {
      this.#end(phase, "not_cold");
      return;
    }
    phase.failures = isSomeDone(outcome) ? 0 : phase.failures + 1;
    if (phase.failures >= FAILURES_MAX) this.#end(phase, "nothing_comes");
    else if (phase.failures > 0 && outcome.kind !== "receipt")
      phase.nextMs = sentMs + AFTER_FAILURE_MS;
  }

  #end(phase: Phase, why: string): void {
    const { worker } = phase.target;
    if (this.#phases.get(worker) !== phase) return;
    this.#phases.delete(worker);
    this.queue.decline(why);
  }
}

/** Returns true if all named blocks were already in RAM. */
function isAllThere(outcome: OrderOutcome): boolean {
  if (outcome.kind !== "receipt") return false;
  const { already = 0, ...others } = outcome.counts;
  return already > 0 && Object.values(others).every((count) => count === 0);
}
