import { messageOf } from "../../core/index.ts";
import type { DialOptions } from "./dial-tcp.ts";

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
