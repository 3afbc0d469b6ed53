import type { WorkerId } from "../../core/index.ts";
import type { CommandQueue } from "./command-queue.ts";
import type { Moment, Policy, RoutedPrompt } from "./policies.ts";
import type { Branch, Noted, Session, SessionTable } from "./session-table.ts";
import type { PolicySettings } from "./settings.ts";

/** A branch of a session that later requests appear not to continue. */
interface Left {
  readonly session: Session;
  readonly branch: Branch;
  readonly requestId: string;
  dueMs: number;
}

/**
 * Prunes blocks that a rewritten prompt no longer contains. If a session's prompt diverges from the
 * previous one, the policy prunes the blocks that only the old branch uses, on the worker that has
 * them. It first waits `settleMs` without use of the old branch, because sub-agents return to their
 * branch; `markedSettleMs` if the client declared the rewrite. It prunes only blocks that no active
 * session uses. It does nothing if the session table evicted a session that may be active.
 */
export class ContextRewrite implements Policy {
  readonly queue: CommandQueue;
  readonly #settings: PolicySettings["contextRewrite"];
  readonly #sessions: SessionTable;
  /** Abandoned branches, the longest abandoned first. */
  readonly #left = new Map<Branch, Left>();

  constructor(
    queue: CommandQueue,
    settings: PolicySettings["contextRewrite"],
    sessions: SessionTable,
  ) {
    this.queue = queue;
    this.#settings = settings;
    this.#sessions = sessions;
  }

  get pending(): number {
    return this.#left.size;
  }

  routed({ requestId }: RoutedPrompt, noted: Noted, { heardMs }: Moment): void {
    const { session, branch, left } = noted;
    if (this.#left.delete(branch)) this.queue.decline("came_back");
    if (left === null || session.id === null) return;
    if (this.#left.size >= this.#settings.pendingMax) {
      this.queue.decline("pending");
      return;
    }
    const dueMs = heardMs + this.#settings.settleMs;
    this.#left.delete(left);
    this.#left.set(left, { session, branch: left, requestId, dueMs });
  }

  rewritten({ requestId }: RoutedPrompt, { heardMs }: Moment): void {
    for (const left of this.#left.values()) {
      if (left.requestId === requestId) left.dueMs = heardMs + this.#settings.markedSettleMs;
    }
  }

  sessionDropped(session: Session): void {
    for (const left of [...this.#left.values()]) {
      if (left.session === session) this.#left.delete(left.branch);
    }
  }

  workerLeft(worker: WorkerId): void {
    for (const { branch } of [...this.#left.values()]) {
      if (branch.target.worker === worker) this.#left.delete(branch);
    }
  }

  tick(at: Moment): void {
    for (const left of [...this.#left.values()]) {
      if (left.dueMs > at.heardMs) continue;
      if (!this.queue.hasRoom) return;
      this.#left.delete(left.branch);
      this.#prune(left, at);
    }
  }

  #prune({ session, branch, requestId }: Left, { heardMs }: Moment): void {
    if (!session.branches.includes(branch)) {
      this.queue.decline("forgotten");
      return;
    }
    if (!this.#sessions.isComplete(heardMs)) {
      this.queue.decline("crowded");
      return;
    }
    const { chain, target } = branch;
    this.#sessions.dropBranch(session, branch);
    const first = this.#sessions.firstFree(chain);
    const tokens = (chain.blocks - first - 1) * chain.blockTokens;
    if (tokens < this.#settings.tokensMin) {
      this.queue.decline("short");
      return;
    }
    for (const after of chain.names(first, first + 1)) {
      this.queue.send({
        requestId,
        worker: target.worker,
        command: { type: "Prune", after_block_hash: after },
      });
    }
  }
}
