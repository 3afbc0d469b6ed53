import { expect, test } from "bun:test";
import { join } from "node:path";
import { probeRdma, type RdmaProbe } from "../../src/devices/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { describeNative } from "../support/index.ts";
import { standIn } from "../support/stand-ins.ts";

const SOURCES = join(import.meta.dir, "../../src");

const LOOK = `
  import { probeRdma } from "${SOURCES}/devices/index.ts";
  import { loadNative } from "${SOURCES}/native/index.ts";
  const look = { library: process.argv[1], devices: null, gidIndex: null };
  console.log(JSON.stringify(await probeRdma(loadNative(), look)));
`;

describeNative("the stand-in of libibverbs", () => {
  const verbs = standIn("libibverbs.so.1");

  function look(plan: string): Promise<RdmaProbe> {
    verbs.configure(plan);
    return probeRdma(loadNative(), { library: verbs.path, devices: null, gidIndex: null });
  }

  /** The devices that another process finds. */
  async function lookInChild(plan: string): Promise<RdmaProbe | null> {
    const env = { ...process.env, STANDIN_VERBS: plan };
    const command = [process.execPath, "-e", LOOK, verbs.path];
    const child = Bun.spawn(command, { env, stderr: "ignore" });
    const text = await new Response(child.stdout).text();
    return (await child.exited) === 0 ? JSON.parse(text) : null;
  }

  test("shows the devices and ports of its plan, with their NUMA nodes", async () => {
    const { ports } = await look("devices=2;ports=2;numa=3;gid=10.1.2.3");
    expect(ports.map(({ device, number }) => `${device}/${number}`)).toEqual([
      ...["standin0/1", "standin0/2", "standin1/1", "standin1/2"],
    ]);
    expect(new Set(ports.map(({ numaNode }) => numaNode))).toEqual(new Set([3]));
    expect(new Set(ports.map(({ gidIndex, isRoceV2 }) => `${gidIndex} ${isRoceV2}`))).toEqual(
      new Set(["3 true"]),
    );
    const [infiniband] = (await look("layer=infiniband")).ports;
    expect(infiniband).toMatchObject({ linkLayer: "infiniband", isRoceV2: false, gidIndex: 0 });
    expect(infiniband!.lid).toBeGreaterThan(0);
  });

  test("takes its plan from the environment, and refuses an invalid one", async () => {
    const found = await lookInChild("devices=3;reads=5");
    expect(found?.ports.map(({ readsOut }) => readsOut)).toEqual([5, 5, 5]);
    expect(await lookInChild("devises=3")).toBeNull();
    expect(() => verbs.configure("devises=3")).toThrow("no plan: devises=3");
  });

  test("restarts its counters with each plan, and leaves nothing open", async () => {
    await look("");
    const { "calls.ibv_open_device": opened, ...others } = verbs.counters();
    expect(opened).toBe(1);
    const open = Object.entries(others).filter(([name]) => name.startsWith("open."));
    expect(open.map(([, count]) => count)).toEqual(new Array(6).fill(0));
    verbs.configure("");
    expect(verbs.counters()["calls.ibv_open_device"]).toBeUndefined();
  });
});
