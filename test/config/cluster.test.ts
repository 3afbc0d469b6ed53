import { describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { formatProblem, parseConfig, parseRouterConfig } from "../../src/config/index.ts";

const read = (name: string) =>
  readFileSync(new URL(`../../config/cluster/${name}`, import.meta.url), "utf8");
const GPU_HOST = { hostname: "gpu", memoryBytes: 256 * 2 ** 30 };

function agent(name: string) {
  const result = parseConfig(read(name), name, GPU_HOST);
  if (!result.ok) throw new Error(result.problems.map(formatProblem).join("\n"));
  return result.config;
}

function router() {
  const result = parseRouterConfig(read("router.toml"), "router.toml", GPU_HOST);
  if (!result.ok) throw new Error(result.problems.map(formatProblem).join("\n"));
  return result.config;
}

describe("the files of a cluster", () => {
  const agents = ["gpu-01.toml", "gpu-02.toml"].map(agent);

  test("name each other", () => {
    const ids = agents.map(({ node }) => node.id as string);
    expect(ids).toEqual(["gpu-01", "gpu-02"]);
    for (const [at, { peers }] of agents.entries()) {
      const other = agents[1 - at]!;
      expect(peers.peers).toEqual([
        {
          worker: other.node.id,
          host: other.peers.advertise!,
          ...{ streamPort: 7172, quicPort: 7173, rdmaPort: null },
        },
      ]);
    }
    expect(router().workers.map(({ name }) => name)).toEqual(ids);
  });

  test("agree on the cluster, the broker and the model", () => {
    const { events, nats, workers, models } = router();
    const port = nats.url!.split(":").at(-1);
    for (const { peers, nats: theirs, engine } of agents) {
      expect(peers.cluster).toBe(events.cluster);
      expect(theirs.url).toEndWith(`:${port}`);
      expect(workers.map(({ model }) => model)).toContain(engine.kvModel);
      expect(workers.map(({ blockTokens }) => blockTokens)).toContain(engine.kvBlockTokens);
    }
    expect(models[0]!.model).toBe(workers[0]!.model!);
  });

  test("are what their page says", () => {
    const page = read("README.md");
    for (const name of ["gpu-01.toml", "gpu-02.toml", "router.toml"]) expect(page).toContain(name);
    const { api, proxy } = router();
    expect(page).toContain(`http://${api.listen.host}:${api.listen.port}`);
    if (proxy.listen === "off") throw new Error("the proxy listens");
    expect(page).toContain(`http://${proxy.listen.host}:${proxy.listen.port}/v1`);
  });
});
