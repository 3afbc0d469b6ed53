import type { WorkerId } from "../../core/index.ts";
import type { RouteRequest } from "../route.ts";
import type { Target } from "../workers.ts";
import { BlockUses, firstWithout, type PromptChain } from "./prompt-chain.ts";
import type { PolicySettings } from "./settings.ts";

/** One branch of a session: successive prompts of an agent or of one of its sub-agents. */
export interface Branch {
  chain: PromptChain;
  target: Target;
  usedMs: number;
}

export interface Session {
  /** Session id. Null: the request has none. */
  readonly id: string | null;
  readonly branches: Branch[];
  /** Number of requests in progress. */
  live: number;
  /** Time of the latest activity. Same clock as `Moment.heardMs`. */
  heardMs: number;
}

/** Result of recording a request in the session table. */
export interface Noted {
  readonly session: Session;
  readonly branch: Branch;
  /** Previous prompt of the request's branch. Null: the branch is new. */
  readonly before: PromptChain | null;
  /** Branch from which the request diverged. Null if the request contains all its blocks. */
  readonly left: Branch | null;
  /** Number of leading blocks that an earlier prompt of the session already had. */
  readonly kept: number;
}

/**
 * Latest prompts of active sessions, with the workers that served them, and the blocks that
 * sessions share. At a limit, the sessions that were idle longest are evicted.
 */
export class SessionTable {
  readonly #settings: PolicySettings["sessions"];
  readonly #sessions = new Map<string, Session>();
  /** Requests without a session id. Each is stored as a session with one prompt. */
  readonly #anonymous = new Map<string, Session>();
  readonly #uses = new BlockUses();
  readonly #dropped: (session: Session) => void;
  #blocks = 0;
  /** Time of the latest eviction because of a limit. */
  #crowdedMs = Number.NEGATIVE_INFINITY;

  constructor(settings: PolicySettings["sessions"], dropped: (session: Session) => void) {
    this.#settings = settings;
    this.#dropped = dropped;
  }

  get sessions(): number {
    return this.#sessions.size;
  }

  /** Number of blocks in all branches. A block counts once for each branch that has it. */
  get blocks(): number {
    return this.#blocks;
  }

  get(id: string): Session | null {
    return this.#sessions.get(id) ?? null;
  }

  /** Returns the sessions that have an id, the longest idle first. */
  all(): Iterable<Session> {
    return this.#sessions.values();
  }

  /** Returns true if no evicted session may still be active at `heardMs`. */
  isComplete(heardMs: number): boolean {
    return heardMs - this.#crowdedMs > this.#settings.sessionMs;
  }

  note(request: RouteRequest, target: Target, chain: PromptChain, heardMs: number): Noted {
    const session = this.#open(request, heardMs);
    const { branch, kept } = nearestOf(session, chain);
    const lost = branch === null ? 0 : (branch.chain.blocks - kept) * branch.chain.blockTokens;
    const next: Branch = { chain, target, usedMs: heardMs };
    const noted =
      branch !== null && lost <= this.#settings.slackTokens
        ? this.#goOn(session, branch, next, kept)
        : this.#fork(session, branch, next, kept);
    while (this.#isOver() && this.#forgetOldest(session)) this.#crowdedMs = heardMs;
    return noted;
  }

  #open({ sessionId, requestId = "" }: RouteRequest, heardMs: number): Session {
    const map = sessionId === undefined ? this.#anonymous : this.#sessions;
    const key = sessionId ?? requestId;
    const known = map.get(key);
    const session = known ?? { id: sessionId ?? null, branches: [], live: 0, heardMs };
    session.heardMs = heardMs;
    map.delete(key);
    map.set(key, session);
    return session;
  }

  #goOn(session: Session, branch: Branch, next: Branch, kept: number): Noted {
    const before = branch.chain;
    this.#uses.add(next.chain, kept, next.chain.blocks);
    this.#uses.remove(before, kept, before.blocks);
    this.#blocks += next.chain.blocks - before.blocks;
    Object.assign(branch, next);
    return { session, branch, before, left: null, kept };
  }

  #fork(session: Session, left: Branch | null, branch: Branch, kept: number): Noted {
    if (session.branches.length >= this.#settings.branchesMax) {
      const others = session.branches.filter((other) => other !== left);
      const oldest = others.reduce((a, b) => (b.usedMs < a.usedMs ? b : a), others[0] ?? left!);
      this.dropBranch(session, oldest);
    }
    session.branches.push(branch);
    this.#uses.add(branch.chain, 0, branch.chain.blocks);
    this.#blocks += branch.chain.blocks;
    const isKnown = left !== null && session.branches.includes(left);
    return { session, branch, before: null, left: isKnown ? left : null, kept };
  }

  /** Removes a branch that later requests will not continue. */
  dropBranch(session: Session, branch: Branch): void {
    const at = session.branches.indexOf(branch);
    if (at < 0) return;
    session.branches.splice(at, 1);
    this.#uses.remove(branch.chain, 0, branch.chain.blocks);
    this.#blocks -= branch.chain.blocks;
  }

  /**
   * Returns the index of the branch's first block that no other session uses. No other session uses
   * any later block of the branch either.
   */
  ownFrom(session: Session, branch: Branch): number {
    const { chain } = branch;
    const shared = session.branches.map((other) =>
      other === branch ? chain.blocks : other.chain.common(chain),
    );
    return firstWithout(chain.blocks, (block) => {
      const own = shared.filter((common) => common > block).length;
      return this.#uses.of(chain, block) > own;
    });
  }

  /**
   * Returns the index of the chain's first block that no session uses. No session uses any later
   * block of the chain either.
   */
  firstFree(chain: PromptChain): number {
    return this.#uses.firstFree(chain);
  }

  drop(id: string): void {
    const session = this.#sessions.get(id);
    if (session !== undefined) this.#forget(this.#sessions, id, session);
  }

  /** Removes sessions that have been idle too long and have no requests in progress. */
  expire(heardMs: number): void {
    this.#expireIn(this.#sessions, heardMs - this.#settings.sessionMs);
    this.#expireIn(this.#anonymous, heardMs - this.#settings.anonymousMs);
  }

  #expireIn(map: Map<string, Session>, beforeMs: number): void {
    for (const [key, session] of map) {
      if (session.heardMs >= beforeMs) return;
      if (session.live === 0) this.#forget(map, key, session);
    }
  }

  #isOver(): boolean {
    const { blocksMax, sessionsMax } = this.#settings;
    return this.#blocks > blocksMax || this.#sessions.size + this.#anonymous.size > sessionsMax;
  }

  #forgetOldest(but: Session): boolean {
    const [named] = this.#sessions;
    const [unnamed] = this.#anonymous;
    const first = (a: typeof named, b: typeof named) =>
      b === undefined || (a !== undefined && a[1].heardMs <= b[1].heardMs) ? a : b;
    const oldest = first(unnamed, named);
    if (oldest === undefined || oldest[1] === but) return false;
    const map = oldest === named ? this.#sessions : this.#anonymous;
    this.#forget(map, oldest[0], oldest[1]);
    return true;
  }

  #forget(map: Map<string, Session>, key: string, session: Session): void {
    map.delete(key);
    for (const branch of [...session.branches]) this.dropBranch(session, branch);
    if (session.id !== null) this.#dropped(session);
  }
}

/** Returns the branch with the longest common prefix; of equal ones, the latest. */
function nearestOf(session: Session, chain: PromptChain): { branch: Branch | null; kept: number } {
  let branch: Branch | null = null;
  let kept = 0;
  for (const other of session.branches) {
    const common = other.chain.common(chain);
    const isBetter = common > kept || (common === kept && other.usedMs >= (branch?.usedMs ?? 0));
    if (common === 0 || !isBetter) continue;
    branch = other;
    kept = common;
  }
  return { branch, kept };
}

interface PrefixBlock {
  readonly key: number;
  /** Index of the block in the prompts that contain it. */
  readonly block: number;
  /** Number of prompts that began with this block, one per conversation. Decreases over time. */
  readonly uses: number;
  readonly names: readonly string[];
  /** Worker that served the latest of these prompts. */
  readonly worker: WorkerId;
}

type Entry = { -readonly [Member in keyof PrefixBlock]: PrefixBlock[Member] };

/** Blocks stored when a prompt first extends a chain. Each further use doubles the number. */
const GROWTH_BLOCKS = 64;
const GENERATION_MS = 600_000;
const LIST_MS = 2_000;

/**
 * Common prompt prefixes. A chain is extended only when it is used again, so the unique end of a
 * prompt takes little memory. Entries are in two generations. A generation that is full or old is
 * replaced. An entry that is used again moves to the new generation with half of its uses.
 */
export class RecentPrefixes {
  readonly #blocksMax: number;
  #current = new Map<number, Entry>();
  #previous = new Map<number, Entry>();
  #bornMs = 0;
  #listedMs = Number.NEGATIVE_INFINITY;
  #list: readonly PrefixBlock[] = [];

  /** `blocksMax`: maximum entries in both generations together. */
  constructor(blocksMax: number) {
    this.#blocksMax = blocksMax;
  }

  get size(): number {
    return this.#current.size + this.#previous.size;
  }

  /**
   * Records a prompt that `worker` served. Does not count its first `kept` blocks: an earlier
   * prompt of the conversation counted them.
   */
  note(chain: PromptChain, kept: number, worker: WorkerId, nowMs: number): void {
    this.#turn(nowMs);
    let block = 0;
    let last: Entry | null = null;
    for (; block < chain.blocks; block++) {
      const entry = this.#get(keyOf(chain, block));
      if (entry === null) break;
      if (block >= kept) entry.uses++;
      entry.worker = worker;
      last = entry;
    }
    if (block < kept || (last !== null && last.uses < 2)) return;
    const end = Math.min(chain.blocks, block * 2 + GROWTH_BLOCKS);
    for (; block < end && this.#current.size < this.#blocksMax / 2; block++) {
      const key = keyOf(chain, block);
      this.#current.set(key, { key, block, uses: 1, names: chain.names(block, block + 1), worker });
    }
  }

  /** Returns the blocks with at least `usesMin` uses, most used first, parents before children. */
  best(usesMin: number, nowMs: number): readonly PrefixBlock[] {
    if (nowMs - this.#listedMs < LIST_MS) return this.#list;
    const found: Entry[] = [];
    for (const entry of this.#current.values()) if (entry.uses >= usesMin) found.push(entry);
    for (const entry of this.#previous.values()) if (entry.uses >= usesMin) found.push(entry);
    this.#list = found.sort((a, b) => b.uses - a.uses || a.block - b.block);
    this.#listedMs = nowMs;
    return this.#list;
  }

  #get(key: number): Entry | null {
    const entry = this.#current.get(key);
    if (entry !== undefined) return entry;
    const older = this.#previous.get(key);
    if (older === undefined || this.#current.size >= this.#blocksMax / 2) return older ?? null;
    older.uses = Math.max(1, older.uses / 2);
    this.#previous.delete(key);
    this.#current.set(key, older);
    return older;
  }

  #turn(nowMs: number): void {
    const isOld = nowMs - this.#bornMs >= GENERATION_MS;
    if (!isOld && this.#current.size < this.#blocksMax / 2) return;
    this.#previous = this.#current;
    this.#current = new Map();
    this.#bornMs = nowMs;
  }
}

/** Returns 53 bits of the block's digest, as a number. */
function keyOf(chain: PromptChain, block: number): number {
  return chain.lo(block) + (chain.hi(block) & 0x1f_ffff) * 2 ** 32;
}
