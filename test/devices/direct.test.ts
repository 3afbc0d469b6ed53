import { expect, test } from "bun:test";
import { type DirectFinding, probeDirect, probeRdma } from "../../src/devices/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { describeNative } from "../support/index.ts";
import { standIn } from "../support/stand-ins.ts";

const OPEN = ["contexts", "pds", "mrs", "cqs", "qps", "channels"].map((kind) => `open.${kind}`);

describeNative("a NIC that writes to a GPU's memory", () => {
  const cuda = standIn("libcuda.so.1");
  const verbs = standIn("libibverbs.so.1");

  /** What is found on devices of these plans; nothing of them is left open. */
  async function probe(gpus: string, nic: string, later = ""): Promise<DirectFinding[]> {
    const native = loadNative();
    cuda.configure(gpus);
    verbs.configure(nic);
    const look = { library: verbs.path, devices: null, gidIndex: null };
    const { ports } = await probeRdma(native, look);
    if (later !== "") verbs.configure(`+${later}`);
    const libraries = { gpuLibrary: cuda.path, rdmaLibrary: verbs.path };
    const findings = await probeDirect(native, { ...libraries, ports });
    const counters = verbs.counters();
    expect(OPEN.map((kind) => counters[kind])).toEqual(OPEN.map(() => 0));
    const left = Object.entries(cuda.counters()).filter(([name]) => name.startsWith("open."));
    const isLost = findings.some(({ text }) => text.includes("CUDA error 700"));
    // Of a lost device nothing can be freed.
    if (!isLost) expect(left.filter(([, count]) => count !== 0)).toEqual([]);
    return findings;
  }

  test("is said to work where the bytes arrived, for each GPU", async () => {
    const found = await probe("devices=2", "");
    expect(found.map(({ kind, text, port, fix }) => ({ kind, text, port, fix }))).toEqual([
      { kind: "usable", text: "dma-buf works with standin0/1", port: "standin0/1", fix: null },
      { kind: "usable", text: "dma-buf works with standin0/1", port: "standin0/1", fix: null },
    ]);
    expect(verbs.counters().reads).toBe(2);
  });

  const CASES: [what: string, gpus: string, nic: string, later: string, says: RegExp][] = [
    ["a driver without dma-buf", "dma-buf=off", "", "", /the driver cannot export GPU memory/],
    [
      "a NIC without dma-buf",
      "",
      "dmabuf=off",
      "",
      /standin0\/1 cannot register memory of other devices/,
    ],
    ["no port that is active", "", "port=down", "", /no RDMA port is active/],
    ["a port that goes down", "", "", "port=down", /standin0\/1 is not active/],
    ["memory of GPUs that is refused", "", "", "ibv_reg_dmabuf_mr=22", /GPU's memory \(errno 22\)/],
    ["RAM that cannot be registered", "", "", "memlock", /RAM cannot be registered \(errno 12\)/],
    ["a device that is not opened", "", "", "ibv_open_device=13", /cannot be opened \(errno 13\)/],
    ["no queue pair", "", "", "ibv_create_qp=12", /no connection within standin0\/1 \(errno 12\)/],
    ["a READ that fails", "", "read=10", "", /READ into the GPU failed \(status 10\)/],
    [
      "bytes that do not arrive as they were",
      "",
      "flip",
      "",
      /data written by the NIC did not arrive/,
    ],
    ["no memory left", "cuMemCreate=2", "", "", /GPU memory: CUDA error 2/],
    ["a GPU lost before", "copy=700@1", "", "", /a copy: CUDA error 700 \(illegal address\)/],
    ["a GPU lost behind the READ", "copy=700@2", "", "", /a copy: CUDA error 700/],
    ["a READ that does not end", "", "hang", "", /does not end/],
  ];
  test.each(CASES)("goes through RAM with %s", async (_, gpus, nic, later, says) => {
    const [finding] = await probe(gpus, nic, later);
    expect(finding?.kind).toBe("broken");
    expect(finding?.text).toStartWith("through RAM: ");
    expect(finding?.text).toMatch(says);
  });

  test("is the one that is nearest", async () => {
    const [finding] = await probe("", "devices=2;port=down/0");
    expect(finding?.text).toBe("dma-buf works with standin1/1");
  });

  test("is nothing to ask for without a GPU", async () => {
    expect(await probe("init=100", "")).toEqual([]);
  });
});
