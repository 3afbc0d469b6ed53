import { connect } from "node:net";
import { type Clock, messageOf } from "../../core/index.ts";
import { absent, type Check, fail, ok, warn } from "./report.ts";

const DEFAULT_PORTS: Readonly<Record<string, number>> = {
  "nats:": 4222,
  "tls:": 4222,
  "ws:": 80,
  "wss:": 443,
};
/** A server's first line is a few hundred bytes; more than this is no NATS. */
const GREETING_CHARACTERS_MAX = 64 * 1024;

type Reached =
  | { readonly kind: "connected" }
  | { readonly kind: "greeted"; readonly greeting: string }
  | { readonly kind: "silent" }
  | { readonly kind: "failed"; readonly why: string };

interface Target {
  readonly host: string;
  readonly port: number;
  /** nats:// and tls:// servers speak first; WebSocket ones wait. */
  readonly greets: boolean;
}

/** `nats://host:4222`, `tls://`, `ws://`, `wss://` or `host:port`; null where it is none. */
function targetOf(url: string): Target | null {
  const whole = url.includes("://") ? url : `nats://${url}`;
  if (!URL.canParse(whole)) return null;
  const { protocol, hostname, port } = new URL(whole);
  const standard = DEFAULT_PORTS[protocol];
  if (standard === undefined || hostname === "") return null;
  return {
    host: hostname.replace(/^\[|\]$/g, ""),
    port: port === "" ? standard : Number(port),
    greets: protocol === "nats:" || protocol === "tls:",
  };
}

/** Connects and, where the server speaks first, waits for its first line. Never rejects. */
function reach(target: Target, clock: Clock, timeoutMs: number): Promise<Reached> {
  return new Promise((resolve) => {
    let text = "";
    let isConnected = false;
    const socket = connect({ host: target.host, port: target.port });
    const end = (reached: Reached) => {
      timer[Symbol.dispose]();
      socket.destroy();
      resolve(reached);
    };
    const timer = clock.after(timeoutMs, () => {
      const why = `no answer within ${timeoutMs} ms`;
      end(isConnected ? { kind: "silent" } : { kind: "failed", why });
    });
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

/** Whether a NATS server answers at `url`. Says host and port only: a URL may hold a password. */
export async function checkNats(
  url: string | null,
  clock: Clock,
  timeoutMs: number,
): Promise<Check> {
  if (url === null) return absent("NATS", "not asked for (--nats URL)");
  const target = targetOf(url);
  if (target === null) {
    const advice = "write nats://host:4222, tls://, ws:// or wss://";
    return fail("NATS", "the URL names no server", advice);
  }
  const place = `${target.host}:${target.port}`;
  const reached = await reach(target, clock, timeoutMs);
  switch (reached.kind) {
    case "connected":
      return ok("NATS", `${place} accepts connections`);
    case "silent":
      return warn("NATS", `${place} accepts connections but is silent`, "check that it is NATS");
    case "failed": {
      const advice = "start the server, or check its address and the firewall between";
      return fail("NATS", `${place}: ${reached.why}`, advice);
    }
    case "greeted": {
      const version = /^INFO .*"version"\s*:\s*"([^"]{1,40})"/.exec(reached.greeting)?.[1];
      if (version !== undefined) return ok("NATS", `${place} runs nats-server ${version}`);
      return warn("NATS", `${place} answers, but not as NATS does`, "check host and port");
    }
    default:
      return reached satisfies never;
  }
}
