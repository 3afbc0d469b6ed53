import { expect, test } from "bun:test";
import { PeerReporter } from "../../src/app/index.ts";
import type { WorkerId } from "../../src/core/index.ts";
import { EventLog } from "../../src/observability/activity/index.ts";
import { createLogger, Health } from "../../src/observability/index.ts";
import type { FetchEvent, PeerRecord, PeerStatus } from "../../src/peers/index.ts";
import { ManualClock } from "../support/index.ts";

const A = "a" as WorkerId;

function open() {
  const clock = new ManualClock();
  const lines: string[] = [];
  const logger = createLogger({
    level: "info",
    format: "json",
    write: (line) => void lines.push(line),
    clock,
  });
  const health = new Health({ clock, log: logger });
  const events = new EventLog(clock);
  const news = new PeerReporter({ clock, logger, health, events });
  const codes = () => health.list().map(({ code }) => code as string);
  const told = () => events.page(0, 100).events.map(({ event }) => event);
  return { clock, lines, health, news, codes, told };
}

test("peer changes are activity events and log lines", () => {
  const { news, told, lines } = open();
  const happened: FetchEvent[] = [
    { kind: "breaker_opened", worker: A, why: "refused", cooldownMs: 1_000.4 },
    { kind: "breaker_closed", worker: A },
    { kind: "transport_down", worker: A, transport: "quic", why: "silent", cooldownMs: 5 },
    { kind: "transport_up", worker: A, transport: "quic" },
    { kind: "peer_slow", worker: A, afterMs: 12.6 },
    { kind: "peer_restarted", worker: A },
  ];
  for (const event of happened) news.pull(event);
  const peer = { worker: A } as PeerRecord;
  news.member("came", peer);
  news.member("changed", peer);
  news.member("went", peer);
  expect(told()).toEqual([
    { kind: "peer_down", peer: "a", why: "refused", cooldown_ms: 1_000 },
    { kind: "peer_up", peer: "a" },
    { kind: "peer_transport_down", peer: "a", transport: "quic", why: "silent", cooldown_ms: 5 },
    { kind: "peer_transport_up", peer: "a", transport: "quic" },
    { kind: "peer_slow", peer: "a", after_ms: 13 },
    { kind: "peer_restarted", peer: "a" },
    { kind: "peer_came", peer: "a" },
    { kind: "peer_went", peer: "a" },
  ]);
  expect(lines).toHaveLength(8);
  expect(JSON.parse(lines[0]!)).toMatchObject({ level: "warn", message: "peer down", peer: "a" });
});

test("a corrupt answer raises a health code for ten minutes", () => {
  const { news, clock, codes, told } = open();
  const timers = clock.pending;
  news.watch(() => []);
  news.pull({ kind: "peer_corrupt", worker: A, key: "ab", why: "its checksum is another" });
  expect(codes()).toEqual(["PEERS_CORRUPT"]);
  clock.advance(599_000);
  expect(codes()).toEqual(["PEERS_CORRUPT"]);
  clock.advance(3_000);
  expect(codes()).toEqual([]);
  expect(told()).toHaveLength(1);
  news[Symbol.dispose]();
  expect(clock.pending).toBe(timers);
});

test("unreachable peers raise a health code until one is reached", () => {
  const { news, clock, codes } = open();
  const status = (breaker: PeerStatus["breaker"]) =>
    ({ worker: A, breaker, lastFault: "refused" }) as PeerStatus;
  let peers: PeerStatus[] = [];
  news.watch(() => peers);
  const after = (now: PeerStatus[]) => {
    peers = now;
    clock.advance(1_000);
    return codes();
  };
  expect(after([])).toEqual([]);
  expect(after([status("open"), status("open")])).toEqual(["PEERS_DOWN"]);
  expect(after([status("open"), status("trial")])).toEqual(["PEERS_DOWN"]);
  expect(after([status("open"), status("closed")])).toEqual([]);
  expect(after([status("open"), status("trial")])).toEqual([]);
  expect(after([status("open")])).toEqual(["PEERS_DOWN"]);
  expect(after([])).toEqual([]);
});

test("certificates report refused files and their expiry", () => {
  const { news, codes } = open();
  news.trust({ kind: "refused", why: "no key" });
  expect(codes()).toEqual(["PEERS_FILES"]);
  news.trust({ kind: "loaded", notAfterMs: 1 });
  expect(codes()).toEqual([]);
  news.trust({ kind: "expiry", state: "soon", notAfterMs: 1 });
  expect(codes()).toEqual(["PEERS_CERT"]);
  news.trust({ kind: "expiry", state: "late", notAfterMs: 1 });
  expect(codes()).toEqual(["PEERS_CERT_ENDED"]);
  news.trust({ kind: "expiry", state: "far", notAfterMs: 1 });
  expect(codes()).toEqual([]);
});
