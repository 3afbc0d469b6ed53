import { expect, test } from "bun:test";
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { digestOf } from "../store/names.ts";
import { describeNative, waitFor, withTempDir } from "../support/index.ts";
import { AgentProcess, FROM_CHECKOUT } from "./agent-process.ts";

const keyOf = (name: string) => digestOf(name).toHex();

const SSD = (folder: string) => ({ ssd_dir: join(folder, "ssd"), ssd_gib: 64 / 1_024 });

interface Events {
  readonly events: readonly { readonly kind: string }[];
}

async function post(agent: AgentProcess, path: string, body: object): Promise<unknown> {
  const { url } = await agent.logged("api listening");
  const headers = { "content-type": "application/json" };
  const init = { method: "POST", headers, body: JSON.stringify(body), keepalive: false };
  return (await fetch(`${url}${path}`, init)).json();
}

/** Stores blocks and pins the first. */
async function pinned(agent: AgentProcess, ...names: string[]): Promise<void> {
  await using engine = await agent.connect();
  await engine.put(...names);
  const pin = { type: "Cache", block_keys: [keyOf(names[0]!)], pin: true, issuer: "router" };
  expect(await post(agent, "/v1/commands", pin)).toMatchObject({ status: "ok", durable: true });
}

// biome-ignore lint/suspicious/noExplicitAny: tests look at what they name
function linesOf(path: string): any[] {
  const text = readFileSync(path, "utf8");
  return text
    .split("\n")
    .slice(0, -1)
    .map((line) => JSON.parse(line));
}

function blockFiles(folder: string): string[] {
  return readdirSync(folder, { recursive: true, encoding: "utf8" })
    .filter((path) => path.endsWith(".kvb") && !path.startsWith("quarantine"))
    .map((path) => join(folder, path));
}

describeNative("an agent's control plane", () => {
  test(
    "status sums pinned bytes and a purge writes an audit log line",
    () =>
      withTempDir(async (folder) => {
        const audit = join(folder, "audit.jsonl");
        const api = { loopback_role: "purge" };
        const config = { api, kv: SSD(folder), control: { audit_file: audit } };
        await using agent = await AgentProcess.start({ folder, config });
        await pinned(agent, "a", "b");
        const { control, nats } = await agent.status();
        expect(nats).toBeNull();
        expect(control).toMatchObject({
          pins: { holds: 1, blocks: 1 },
          leases: { holds: 0, blocks: 0, bytes: 0 },
          ledger_failing: null,
        });
        expect(control.kept_bytes).toBe(control.pins.bytes);
        expect(control.kept_bytes_max).toBeGreaterThan(control.kept_bytes);
        const blocks = [{ digest: keyOf("a") }, { digest: keyOf("b") }];
        expect(await post(agent, "/v1/purge", { blocks })).toEqual({ outcomes: ["held", "done"] });
        const line = await waitFor(() =>
          linesOf(audit).find(({ type }: { readonly type: string }) => type === "Purge"),
        );
        expect(line).toMatchObject({
          ...{ via: "http", issuer: "local", role: "purge", blocks: 2, status: "partial" },
          counts: { done: 1, missing: 0, held: 1, failed: 0 },
        });
      }),
    60_000,
  );

  test(
    "an audit log without its folder: told by check, at the start, and until a line is written",
    () =>
      withTempDir(async (folder) => {
        const audit = join(folder, "missing", "audit.jsonl");
        await using agent = await AgentProcess.start({
          folder,
          config: { control: { audit_file: audit } },
        });
        const words = [...FROM_CHECKOUT, "check", agent.configPath];
        const check = Bun.spawnSync(words, { stdout: "pipe", stderr: "pipe" });
        expect(`${check.stdout}${check.stderr}`).toContain(
          `folder ${join(audit, "..")} does not exist`,
        );
        const failing = 'code="AUDIT_LOG"';
        const isRaised = async () => (await agent.metric("hearth_health", failing)) === 1;
        await waitFor(isRaised, 10_000, "the health code");
        const { uptime_seconds: then } = await agent.status();
        await post(agent, "/v1/commands", { type: "Flush" });
        // Some looks later it is the matter still, and was all along.
        await waitFor(async () => (await agent.status()).uptime_seconds > then + 3, 10_000);
        expect(await isRaised()).toBe(true);
        expect(await agent.metric("hearth_health_raised_total", failing)).toBe(1);
        mkdirSync(join(folder, "missing"));
        await post(agent, "/v1/commands", { type: "Flush" });
        await waitFor(async () => !(await isRaised()), 10_000, "its end");
        expect(linesOf(audit)).toMatchObject([{ type: "Flush" }]);
        expect(await agent.metric("hearth_audit_lines_dropped_total")).toBe(1);
      }),
    60_000,
  );

  test(
    "a damaged pinned block is a miss and its owner is notified",
    () =>
      withTempDir(async (folder) => {
        const config = { kv: SSD(folder) };
        {
          await using agent = await AgentProcess.start({ folder, config });
          await pinned(agent, "a");
          expect(await agent.kill("SIGTERM")).toBe(0);
        }
        const [path, ...others] = blockFiles(join(folder, "ssd"));
        expect(others).toEqual([]);
        const bytes = readFileSync(path!);
        bytes[4096] = bytes[4096]! ^ 0xff;
        writeFileSync(path!, bytes);
        await using agent = await AgentProcess.start({ folder, config });
        const warm = { type: "Warm", block_keys: [keyOf("a")] };
        expect(await post(agent, "/v1/commands", warm)).toMatchObject({ counts: { done: 0 } });
        const { events } = (await (await agent.get("/v1/events")).json()) as Events;
        expect(events.filter(({ kind }) => kind === "hold_lost")).toMatchObject([
          { hold: "pin", owner: "router", blocks: 1, why: "file on SSD damaged" },
        ]);
        await using engine = await agent.connect();
        expect(await engine.get("a")).toEqual(["miss"]);
        expect(await agent.metric("hearth_holds_ended_total", 'how="lost"')).toBe(1);
      }),
    60_000,
  );
});
