import type { WorkerId } from "../../core/index.ts";
import type { Desk } from "./command-queue.ts";
import type { Moment, Policy, RoutedPrompt } from "./policies.ts";
import type { Line, Noted, Session, SessionBook } from "./session-table.ts";
import type { ContextRewriteSettings } from "./settings.ts";

/** A way that its session has left, as it seems. */
interface Left {
  readonly session: Session;
  readonly line: Line;
  readonly requestId: string;
  dueMs: number;
}

/**
 * A session's prompt leaves the way of the one before: what only the old way had is pruned, on the
 * worker that has it, once it was not taken again for some time (an agent's sub-agents leave and
 * come back), or soon where the sender said that it rewrote the prompt. The prune begins behind the
 * first block that no live session has, so that it meets nothing of others, nor of the new prompt.
 * It is left out where somebody who may be live was forgotten for want of room.
 */
export class ContextRewrite implements Policy {
  readonly desk: Desk;
  readonly #settings: ContextRewriteSettings;
  readonly #book: SessionBook;
  /** The one left longest ago first. */
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
