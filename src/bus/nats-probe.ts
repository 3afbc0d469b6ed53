import { connect } from "node:net";
import { type Clock, messageOf } from "../core/index.ts";
import type { DialOptions } from "./nats-dial.ts";

const CHARACTERS_MAX = 300;
/** How Bun's WebSocket begins whatever it has to say. */
const WEBSOCKET_PREFIX = /^WebSocket connection to '[^']*' failed: /;

type Facts = Pick<DialOptions, "server" | "credentials" | "tls" | "timeoutMs">;
type Rule = readonly [pattern: RegExp, words: (facts: Facts) => string];

/**
 * What client libraries, TLS and the runtime say, and what it means. The first that fits counts. A
 * certificate of ours that a server refuses shows over TCP as nothing but a failed write.
 */
const RULES: readonly Rule[] = [
  [
    /authorization violation/i,
    ({ credentials }) =>
      credentials.kind === "none"
        ? "the server wants credentials"
        : "the server refused our credentials",
  ],
  [/authentication expired/i, () => "our credentials have expired"],
  [/authentication timeout/i, () => "the server did not get our credentials in time"],
  [
    /EBADF|BAD_CERTIFICATE|CERTIFICATE_REQUIRED|ALERT_UNKNOWN_CA|CERTIFICATE_UNKNOWN/,
    ({ tls }) =>
      tls.cert === undefined
        ? "the server wants a client certificate"
        : "the server refused our client certificate",
  ],
  [
    /verify the first certificate|self.signed|unable to get (?:local )?issuer/i,
    ({ tls }) =>
      tls.ca === undefined
        ? "the server's certificate is signed by no authority of this system; name its CA file"
        : "the server's certificate is not signed by the authorities in the CA file",
  ],
  [/altname/i, ({ server }) => `the server's certificate is not for ${server.host}`],
  [/certificate has expired/i, () => "the server's certificate has expired"],
  [/WRONG_VERSION_NUMBER|does not support 'tls'/, () => "the server offers no TLS there"],
  [/status code: 4|Invalid response/, () => "it answers, but not as NATS over WebSocket does"],
  [/timeout/i, ({ timeoutMs }) => `no answer within ${timeoutMs} ms`],
];

/** A failed or broken connection in one line, naming the server and never a secret. */
export function explainFault(thrown: unknown, facts: Facts, reason = ""): string {
  const message = reason === "" ? messageOf(thrown) : reason;
  const all = `${(thrown as { code?: unknown })?.code ?? ""} ${messageOf(thrown)} ${reason}`;
  const rule = RULES.find(([pattern]) => pattern.test(all));
  const words = rule?.[1](facts) ?? message.replace(WEBSOCKET_PREFIX, "").slice(0, CHARACTERS_MAX);
  return `${facts.server.url}: ${words}`;
}

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
