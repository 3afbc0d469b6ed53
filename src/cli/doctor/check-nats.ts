import { natsVersionIn, reach, type Target } from "../../bus/index.ts";
import type { Clock } from "../../core/index.ts";
import { absent, type Check, fail, ok, warn } from "./report.ts";

const DEFAULT_PORTS: Readonly<Record<string, number>> = {
  "nats:": 4222,
  "tls:": 4222,
  "ws:": 80,
  "wss:": 443,
};
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
      const version = natsVersionIn(reached.greeting);
      if (version !== null) return ok("NATS", `${place} runs nats-server ${version}`);
      return warn("NATS", `${place} answers, but not as NATS does`, "check host and port");
    }
    default:
      return reached satisfies never;
  }
}
