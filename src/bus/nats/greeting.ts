import { connect } from "node:net";
import { type Clock, messageOf } from "../../core/index.ts";

/** A server's first line is a few hundred bytes; more than this is no NATS. */
const GREETING_CHARACTERS_MAX = 64 * 1024;

export type Reached =
  | { readonly kind: "connected" }
  | { readonly kind: "greeted"; readonly greeting: string }
  | { readonly kind: "silent" }
  | { readonly kind: "failed"; readonly why: string };

export interface Target {
  readonly host: string;
  readonly port: number;
  /** nats:// and tls:// servers speak first; WebSocket ones wait. */
  readonly greets: boolean;
}

/**
 * Connects and, where the server speaks first, waits for its first line; then leaves. Never
 * rejects.
 */
export function reach(
  target: Target,
  clock: Clock,
  timeoutMs: number,
  signal?: AbortSignal,
): Promise<Reached> {
  return new Promise((resolve) => {
    let text = "";
    let isConnected = false;
    const socket = connect({ host: target.host, port: target.port });
    const end = (reached: Reached) => {
      timer[Symbol.dispose]();
      signal?.removeEventListener("abort", onAbort);
      socket.destroy();
      resolve(reached);
    };
    const onAbort = () => end({ kind: "failed", why: "nobody waits for it any more" });
    const timer = clock.after(timeoutMs, () => {
      const why = `no answer within ${timeoutMs} ms`;
      end(isConnected ? { kind: "silent" } : { kind: "failed", why });
    });
    if (signal?.aborted) return onAbort();
    signal?.addEventListener("abort", onAbort);
    socket.setEncoding("latin1");
    socket.on("connect", () => {
      isConnected = true;
      if (!target.greets) end({ kind: "connected" });
    });
    socket.on("data", (chunk) => {
      text += chunk;
      const isLine = text.includes("\n") || text.length > GREETING_CHARACTERS_MAX;
      if (isLine) end({ kind: "greeted", greeting: text });
    });
    socket.on("error", (error) => end({ kind: "failed", why: messageOf(error) }));
    socket.on("close", () => end({ kind: "silent" }));
  });
}

/** The version in a NATS server's first line; null where it is none. */
export function natsVersionIn(greeting: string): string | null {
  return /^INFO .*"version"\s*:\s*"([^"]{1,40})"/.exec(greeting)?.[1] ?? null;
}
