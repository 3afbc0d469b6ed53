import type { WorkerId } from "../../core/index.ts";
import type { Desk } from "./command-queue.ts";
import type { Moment, Policy, RoutedPrompt } from "./policies.ts";
import type { Line, Noted, Session, SessionBook } from "./session-table.ts";
import type { ContextRewriteSettings } from "./settings.ts";

/** A branch that its session appears to have abandoned. */
interface Left {
  readonly session: Session;
  readonly line: Line;
  readonly requestId: string;
  dueMs: number;
}

/**
 * Prunes what a rewritten prompt leaves behind. If a session's prompt diverges from the previous
 * one, the blocks that only the old branch uses are pruned on the worker that holds them. The
 * policy waits until the branch was not used for a while (sub-agents return to their branch), or
 * only briefly if the sender marked the prompt as rewritten. Pruning starts after the first block
 * that no active session uses, so it affects neither other sessions nor the new prompt. It is
 * skipped if a possibly active session was evicted from the session table.
 */
export class ContextRewrite implements Policy {
  readonly desk: Desk;
  readonly #settings: ContextRewriteSettings;
  readonly #book: SessionBook;
  /** In the order in which they were abandoned, oldest first. */
  readonly #left = new Map<Line, Left>();

  constructor(desk: Desk, settings: ContextRewriteSettings, book: SessionBook) {
    this.desk = desk;
    this.#settings = settings;
    this.#book = book;
  }

  get pending(): number {
    return this.#left.size;
  }

  routed({ requestId }: RoutedPrompt, noted: Noted, { heardMs }: Moment): void {
    const { session, line, left } = noted;
    if (this.#left.delete(line)) this.desk.decline("came_back");
    if (left === null || session.id === null) return;
    if (this.#left.size >= this.#settings.pendingMax) {
      this.desk.decline("pending");
      return;
    }
    const dueMs = heardMs + this.#settings.settleMs;
    this.#left.delete(left);
    this.#left.set(left, { session, line: left, requestId, dueMs });
  }

  rewritten({ requestId }: RoutedPrompt, { heardMs }: Moment): void {
    for (const left of this.#left.values()) {
      if (left.requestId === requestId) left.dueMs = heardMs + this.#settings.markedSettleMs;
    }
  }

  sessionDropped(session: Session): void {
    for (const left of [...this.#left.values()]) {
      if (left.session === session) this.#left.delete(left.line);
    }
  }

  workerLeft(worker: WorkerId): void {
    for (const { line } of [...this.#left.values()]) {
      if (line.target.worker === worker) this.#left.delete(line);
    }
  }

  tick(at: Moment): void {
    for (const left of [...this.#left.values()]) {
      if (left.dueMs > at.heardMs) continue;
      if (!this.desk.hasRoom) return;
      this.#left.delete(left.line);
      this.#prune(left, at);
    }
  }

  #prune({ session, line, requestId }: Left, { heardMs }: Moment): void {
    if (!session.lines.includes(line)) {
      this.desk.decline("forgotten");
      return;
    }
    if (!this.#book.isComplete(heardMs)) {
      this.desk.decline("crowded");
      return;
    }
    const { chain, target } = line;
    this.#book.dropLine(session, line);
    const first = this.#book.firstFree(chain);
    const tokens = (chain.blocks - first - 1) * chain.blockTokens;
    if (tokens < this.#settings.tokensMin) {
      this.desk.decline("short");
      return;
    }
    for (const after of chain.names(first, first + 1)) {
      this.desk.send({
        requestId,
        worker: target.worker,
        command: { type: "Prune", after_block_hash: after },
      });
    }
  }
}
