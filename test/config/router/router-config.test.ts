import { describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import {
  diffRouterReload,
  formatProblem,
  parseRouterConfig,
  ROUTER_BOOK,
  type RouterConfig,
  renderRouterConfig,
  renderRouterReference,
  renderRouterSample,
} from "../../../src/config/index.ts";

const FACTS = { hostname: "router.example", memoryBytes: null };

function configOf(text: string, overrides = {}): RouterConfig {
  const result = parseRouterConfig(text, "router.toml", FACTS, overrides);
  if (!result.ok) throw new Error(result.problems.map(formatProblem).join("\n"));
  return result.config;
}

function problemsOf(text: string, overrides = {}): string[] {
  const result = parseRouterConfig(text, "r.toml", FACTS, overrides);
  return result.ok ? [] : result.problems.map(formatProblem);
}

const WORKER = '[workers.gpu-01]\nmodel = "m"\n';

describe("the configuration of a router", () => {
  test("an empty file has the defaults of the origin", () => {
    const { router, events, api, replicas, proxy, workers } = configOf("");
    expect(router).toMatchObject({ id: "router-example", mode: "kv", kvEvents: true });
    expect(router).toMatchObject({ overlapScoreWeight: 1, temperature: 0, ttlMs: 120_000 });
    expect(router).toMatchObject({ maxTreeSize: 2 ** 20, pruneTargetRatio: 0.8, blockTokens: 16 });
    expect(replicas).toMatchObject({ sync: false, resetStates: false });
    expect(replicas.snapshotThreshold).toBe(1_000_000);
    expect(api).toMatchObject({ busyStatus: 529 });
    expect(events.stateDir).toBeNull();
    expect(proxy.listen).toBe("off");
    expect(workers).toEqual([]);
  });

  test("workers stand in tables under their ids", () => {
    const more = '[workers.gpu-02]\nmodel = "m"\nrole = "prefill"\nurl = "http://10.0.0.2:8000"\n';
    const { workers } = configOf(`${WORKER}${more}ranks = 2\nevents = "tcp://10.0.0.2:5557"\n`);
    expect(workers.map(({ name }) => name)).toEqual(["gpu-01", "gpu-02"]);
    expect(workers[0]).toMatchObject({ model: "m", role: "both", url: null, ranks: 1 });
    expect(workers[1]).toMatchObject({ role: "prefill", ranks: 2, blockTokens: null });
  });

  test("what is wrong in a worker's table has its place", () => {
    expect(problemsOf(`${WORKER}ulr = "http://a:1"\n`)).toEqual([
      "r.toml:3:1 workers.gpu-01.ulr: unknown key; did you mean url",
    ]);
    expect(problemsOf("[workers.a]\nrole = 3\n")).toEqual([
      "r.toml:1:10 workers.a: has neither model nor url; set its model, or the url of an engine " +
        "that reports it",
      'r.toml:2:8 workers.a.role: is the number 3; use one of "both", "prefill", "decode"',
    ]);
    expect(problemsOf('[workers."no id"]\nmodel = "m"\n')[0]).toContain("is not a valid worker id");
    expect(problemsOf("workers = 3\n")).toEqual([
      "r.toml:1:1 workers: is the number 3, not named tables; write [workers.gpu-01]",
    ]);
    expect(problemsOf("[workers]\nmodel = 3\n")[0]).toContain("is outside a table");
    expect(problemsOf('[[workers.a]]\nmodel = "m"\n')[0]).toContain("is a list of tables");
  });

  test("a worker's URL has no query, no fragment and no link-local host", () => {
    const problem = (url: string) => problemsOf(`${WORKER}url = "${url}"\n`)[0] ?? "taken";
    for (const url of [
      "http://10.0.0.1:8000",
      "https://gpu-01.example/v1",
      "http://[fd00::1]:8000/base/v1/",
      "http://169.253.0.1:8000",
    ]) {
      expect(problem(url)).toBe("taken");
    }
    for (const url of ["http://h/?q=", "http://h/v1#x", "http://h?x", "http://u@h/", "ftp://h/"]) {
      expect(problem(url)).toContain("without ? and #");
    }
    for (const host of [
      "169.254.169.254",
      "2852039166",
      "0xa9fea9fe",
      "169.254.43518",
      "[::ffff:169.254.169.254]",
      "[fe80::1]",
      "[FEBF::1]",
    ]) {
      expect(problem(`http://${host}/`)).toContain("a link-local address");
    }
    expect(problem("http://[::bad/")).toContain("which is not a URL");
  });

  test("origins are those that browsers send", () => {
    const origins = (value: string) => {
      return problemsOf(`[proxy]\ncors_origins = "${value}"\n`)[0] ?? "taken";
    };
    for (const value of [
      "",
      "*",
      "https://a.example",
      "http://localhost:3000, https://b.example",
    ]) {
      expect(origins(value)).toBe("taken");
    }
    for (const value of ["a.example", "https://a.example/", "https://A.example", "null"]) {
      expect(origins(value)).toContain("which is not an origin");
    }
  });

  test("unknown keys, wrong units and impossible sums refuse the start", () => {
    expect(problemsOf("[router]\nttl = 120\n")[0]).toStartWith("r.toml:2:7 router.ttl: is the num");
    expect(problemsOf('[router]\nmodes = "kv"\n')[0]).toEndWith("did you mean mode");
    expect(problemsOf("[kv]\nram_gib = 1\n")[0]).toContain("unknown section");
    expect(problemsOf("[replicas]\nsync = true\n")[0]).toContain("nats.url is not set");
    expect(problemsOf('[api]\nlisten = "0.0.0.0:7181"\n')[0]).toContain("api.token_file");
    expect(problemsOf('[proxy]\nlisten = "127.0.0.1:7181"\n')[0]).toContain("api.listen");
  });

  test("the command line stands above the file, and is held to the same rules", () => {
    const text = '[router]\nmode = "random"\ntemperature = 0.5\n';
    const { router } = configOf(text, { "router.mode": "kv", "router.kv_events": false });
    expect(router).toMatchObject({ mode: "kv", temperature: 0.5, kvEvents: false });
    expect(problemsOf("", { "router.temperature": -1 })[0]).toContain("too small");
    expect(problemsOf("", { "replicas.sync": true })[0]).toContain("nats.url is not set");
  });

  test("rendered and parsed it is the same", () => {
    const config = configOf(`[router]\nmode = "random"\n[log]\nlevel = "warn"\n${WORKER}`);
    expect(configOf(renderRouterConfig(config))).toEqual(config);
  });

  test("a reload takes workers and the log's level, and says what waits", () => {
    const old = configOf(`${WORKER}[workers.gpu-02]\nmodel = "m"\n`);
    const next = configOf(
      `[log]\nlevel = "debug"\n[router]\nmode = "random"\n${WORKER}ranks = 2\n` +
        '[workers.x]\nmodel = "m"',
    );
    const { changed, needsRestart, effective } = diffRouterReload(old, next);
    expect(changed.map(({ key }) => key)).toEqual([
      "log.level",
      "workers.gpu-01",
      "workers.gpu-02",
      "workers.x",
    ]);
    expect(needsRestart.map(({ key }) => key)).toEqual(["router.mode"]);
    expect(effective.workers).toEqual(next.workers);
    expect(effective.router.mode).toBe("kv");
    expect(diffRouterReload(effective, next).changed).toEqual([]);
  });
});

describe("config/router.toml and the page of keys", () => {
  const text = readFileSync(new URL("../../../config/router.toml", import.meta.url), "utf8");

  test("the file is what the schema renders, and equals the defaults", () => {
    expect(text).toBe(renderRouterSample());
    expect(configOf(text)).toEqual(configOf(""));
  });

  test("parses with every example in it, too", () => {
    const all = text
      .replace(/^#([a-z_]+ = )/gm, "$1")
      .replace("sync = false", "sync = true")
      .replace("#[workers.gpu-01]", "[workers.gpu-01]")
      .replace("#[models.llama]", "[models.llama]");
    const [worker] = configOf(all).workers;
    expect(worker).toMatchObject({ name: "gpu-01", url: "http://10.0.0.2:8000" });
    expect(text.match(/^#?[a-z_]+ = /gm)).toHaveLength(10);
  });

  test("every key has an entry with a paragraph and an example that is allowed", () => {
    const page = renderRouterReference();
    for (const { name, spec } of ROUTER_BOOK.keys) {
      const entry = page.split(`### ${name}\n`)[1]?.split("###")[0] ?? "";
      expect(entry).toContain(spec.doc);
      expect(spec.doc.length).toBeGreaterThan(30);
      expect(spec.kind.read(spec.example).ok).toBe(true);
    }
    for (const spec of Object.values(ROUTER_BOOK.named.workers!.keys)) {
      expect(page).toContain(`### workers.NAME.${spec.key}\n`);
      expect(spec.kind.read(spec.example).ok).toBe(true);
    }
  });
});
