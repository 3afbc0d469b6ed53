import { describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { METRICS } from "../../src/api/index.ts";
import { createLocalBus, LocalHub } from "../../src/bus/index.ts";
import { lanesPortOf, parseConfig, SCHEMA_KEYS } from "../../src/config/index.ts";
import { type Json, systemClock, type WorkerId } from "../../src/core/index.ts";
import { HEALTH_CODES } from "../../src/observability/index.ts";
import { announcementSubject, BusLocator, readAnnouncement } from "../../src/peers/index.ts";
import { basics } from "../bus/bus-bench.ts";

const page = readFileSync(join(import.meta.dir, "../../docs/internals/peers.md"), "utf8");
const fenced = (kind: string) =>
  [...page.matchAll(new RegExp(`\`\`\`${kind}\n([\\s\\S]*?)\`\`\``, "g"))].map(
    (found) => found[1]!,
  );
const [announcement = "", question = "", answer = ""] = fenced("json");

/** Words in backticks, those of fenced examples left out. */
const quoted = [...page.replace(/```[\s\S]*?```/g, "").matchAll(/`([^`]+)`/g)].map(
  (match) => match[1]!,
);

describe("docs/internals/peers.md", () => {
  test("shows an announcement that agents understand", () => {
    const read = readAnnouncement(Buffer.from(announcement));
    expect(read).toMatchObject({ ok: true, announcement: { worker: "gpu-02", kind: "here" } });
    expect(page).toContain("`kv-peers-<peers.cluster>`");
    expect(announcementSubject("a.b")).toBe("kv-peers-a_b");
  });

  test("shows what a router is asked, and what it answers", async () => {
    const hub = new LocalHub();
    const bus = createLocalBus(hub, basics());
    await bus.connected(5_000);
    const asked: Json[] = [];
    bus.subscribe("kv-locate", ({ data, reply }) => {
      asked.push(JSON.parse(Buffer.from(data).toString()));
      bus.publish(reply!, Buffer.from(answer));
    });
    const { cluster, worker_id, namespace, keys } = JSON.parse(question);
    const self = worker_id as WorkerId;
    const locator = new BusLocator({ bus, clock: systemClock, cluster, self });
    const bytes = keys.map((key: string) => Uint8Array.fromHex(key));
    const never = new AbortController().signal;
    const found = await locator.locate(Uint8Array.fromHex(namespace), bytes, 5_000, never);
    expect(asked).toEqual([JSON.parse(question)]);
    expect(found as unknown).toEqual([["gpu-02", "gpu-03"], []]);
    await bus.close(0);
  });

  test("has configurations that are accepted, and keys that there are", () => {
    for (const text of fenced("toml")) {
      const facts = { hostname: "gpu-01", memoryBytes: null };
      const result = parseConfig(`${text}\n[kv]\nram_gib = 1\n`, "page", facts);
      expect(result).toMatchObject({ ok: true });
    }
    const keys = new Set(SCHEMA_KEYS.map(({ name }) => name));
    const named = quoted
      .map((word) => word.split(/[ =]/)[0]!)
      .filter((word) => /^(?:peers|kv|nats|node|engine)\.[a-z_]+$/.test(word));
    expect(named.length).toBeGreaterThan(20);
    expect(named.filter((name) => !keys.has(name))).toEqual([]);
  });

  test("names the ports that are listened on", () => {
    const config = parseConfig("[kv]\nram_gib = 1\n", "f", { hostname: "h", memoryBytes: null });
    if (!config.ok) throw new Error("refused");
    const { listenStream, listenQuic } = config.config.peers;
    if (listenStream === "off" || listenQuic === "off") throw new Error("off");
    expect(page).toContain(`| TCP ${listenStream.port} |`);
    expect(page).toContain(`| TCP ${lanesPortOf(listenStream)} |`);
    expect(page).toContain(`| UDP ${listenQuic.port} |`);
  });

  test("says of every metric of peers when to look, and names none that is not", () => {
    const specs = new Map(Object.entries(METRICS));
    const rows = page.split("\n").filter((line) => /^\| `(?:hearth|cgn)_/.test(line));
    const named = rows.flatMap((row) => [...row.matchAll(/`([a-z_]+)(?:\{([a-z]+)[^`]*\})?`/g)]);
    const metrics = named.filter(([, name]) => /^(?:hearth|cgn)_/.test(name!));
    for (const [, name, label] of metrics) {
      expect([name, specs.has(name!)]).toEqual([name, true]);
      if (label !== undefined) expect(Object.keys(specs.get(name!)!.labels)).toContain(label);
    }
    const told = new Set(metrics.map(([, name]) => name!));
    const ours = [...specs.keys()].filter((name) => /^hearth_peer|quic_pulls/.test(name));
    expect(ours.filter((name) => !told.has(name))).toEqual([]);
  });

  test("has the health codes of peers as they are", () => {
    const rows = page.split("\n").filter((line) => /^\| `PEERS_[A-Z_]+` \|/.test(line));
    const told = rows.map((row) => row.split(" | ").slice(0, 2));
    const codes = Object.entries(HEALTH_CODES).filter(([code]) => code.startsWith("PEERS_"));
    const wanted = codes.map(([code, { severity }]) => [`| \`${code}\``, severity as string]);
    expect(told.sort()).toEqual(wanted.sort());
  });
});
