import type { Clock } from "../../../core/index.ts";
import type { TokenAnswer, TokenOrder } from "./protocol.ts";
import { TokenServer } from "./token-server.ts";

/** Somebody who answers orders. One that is gone fails all of them. */
export interface TokenLine {
  ask(order: TokenOrder): Promise<TokenAnswer>;
  /** Orders that it has not answered. */
  readonly waiting: number;
  readonly isGone: boolean;
  end(): void;
}

/**
 * Beside this file; in the executable, where this code lies at the root, it is an entry point of
 * its own at its path below `src`.
 */
const isInExecutable = import.meta.url.includes("/$bunfs/");
const WORKER = isInExecutable ? "./router/proxy/tokens/token-worker.ts" : "./token-worker.ts";

export function createThreadLine(): TokenLine {
  const worker = new Worker(new URL(WORKER, import.meta.url).href);
  const waiting = new Map<number, (answer: TokenAnswer) => void>();
  let gone: string | null = null;
  const end = (why: string) => {
    gone ??= why;
    for (const [id, resolve] of waiting) resolve({ kind: "failed", id, why: gone });
    waiting.clear();
  };
  worker.onmessage = ({ data }: MessageEvent<TokenAnswer>) => {
    waiting.get(data.id)?.(data);
    waiting.delete(data.id);
  };
  worker.onerror = ({ message }) => end(`its thread failed: ${message}`);
  worker.addEventListener("close", () => end("its thread has ended"));
  return {
    ask(order) {
      if (gone !== null) return Promise.resolve({ kind: "failed", id: order.id, why: gone });
      return new Promise((resolve) => {
        waiting.set(order.id, resolve);
        worker.postMessage(order);
      });
    },
    get waiting() {
      return waiting.size;
    },
    get isGone() {
      return gone !== null;
    },
    end() {
      end("it is closed");
      worker.terminate();
    },
  };
}

/** In this thread: everything else waits while a prompt is tokenised. */
export function createLocalLine(clock: Pick<Clock, "wallMs">): TokenLine {
  const server = new TokenServer(clock);
  return {
    ask: (order) => Promise.resolve(server.answer(order)),
    waiting: 0,
    isGone: false,
    end: () => undefined,
  };
}
