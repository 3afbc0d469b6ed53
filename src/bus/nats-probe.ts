import { connect } from "node:net";
import { type Clock, messageOf } from "../core/index.ts";
import type { DialOptions } from "./nats-dial.ts";

const CHARACTERS_MAX = 300;
/** Matches the prefix of every error message of Bun's WebSocket. */
const WEBSOCKET_PREFIX = /^WebSocket connection to '[^']*' failed: /;

type Facts = Pick<DialOptions, "server" | "credentials" | "tls" | "timeoutMs">;
type Rule = readonly [pattern: RegExp, message: (facts: Facts) => string];

/**
 * Error texts of the client libraries, of TLS and of the runtime, each with an explanation. The
 * first match counts. Over TCP, a rejected client certificate appears only as a failed write.
 */
const RULES: readonly Rule[] = [
  [
    /authorization violation/i,
    ({ credentials }) =>
      credentials.kind === "none"
        ? "the server requires credentials"
        : "the server rejected our credentials",
  ],
  [/authentication expired/i, () => "our credentials have expired"],
  [/authentication timeout/i, () => "the server did not receive our credentials in time"],
  [
    /EBADF|BAD_CERTIFICATE|CERTIFICATE_REQUIRED|ALERT_UNKNOWN_CA|CERTIFICATE_UNKNOWN/,
    ({ tls }) =>
      tls.cert === undefined
        ? "the server requires a client certificate"
        : "the server rejected our client certificate",
  ],
  [
    /verify the first certificate|self.signed|unable to get (?:local )?issuer/i,
    ({ tls }) =>
      tls.ca === undefined
        ? "no authority of this system signed the server's certificate; set a CA file"
        : "no authority in the CA file signed the server's certificate",
  ],
  [/altname/i, ({ server }) => `the server's certificate is not for ${server.host}`],
  [/certificate has expired/i, () => "the server's certificate has expired"],
  [
    /WRONG_VERSION_NUMBER|does not support 'tls'/,
    () => "the server does not offer TLS on this port",
  ],
  [/status code: 4|Invalid response/, () => "the server does not speak NATS over WebSocket"],
  [/timeout/i, ({ timeoutMs }) => `no answer within ${timeoutMs} ms`],
];

/**
 * Returns one line that explains a failed or broken connection. It names the server and contains no
 * secret.
 */
export function explainFault(thrown: unknown, facts: Facts, reason = ""): string {
  const message = reason === "" ? messageOf(thrown) : reason;
  const all = `${(thrown as { code?: unknown })?.code ?? ""} ${messageOf(thrown)} ${reason}`;
  const rule = RULES.find(([pattern]) => pattern.test(all));
  const text = rule?.[1](facts) ?? message.replace(WEBSOCKET_PREFIX, "").slice(0, CHARACTERS_MAX);
  return `${facts.server.url}: ${text}`;
}

/**
 * Maximum characters of a NATS server's greeting, which has a few hundred bytes. A longer first
 * line is not NATS.
 */
const GREETING_CHARACTERS_MAX = 64 * 1024;

export type Reached =
  | { readonly kind: "connected" }
  | { readonly kind: "greeted"; readonly greeting: string }
  | { readonly kind: "silent" }
  | { readonly kind: "failed"; readonly why: string };

export interface Target {
  readonly host: string;
  readonly port: number;
  /**
   * True if the server speaks first, as nats:// and tls:// servers do and WebSocket servers do not.
   */
  readonly greets: boolean;
}

/**
 * Tests whether a server is reachable: connects, waits for the first line if the server speaks
 * first, and disconnects. Never rejects.
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
    const onAbort = () => end({ kind: "failed", why: "cancelled" });
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

/**
 * Returns the version in the first line of a NATS server. Null if `greeting` is not such a line.
 */
export function natsVersionIn(greeting: string): string | null {
  return /^INFO .*"version"\s*:\s*"([^"]{1,40})"/.exec(greeting)?.[1] ?? null;
}
