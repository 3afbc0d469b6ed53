import { describe, expect, test } from "bun:test";
import { configOf, NO_FACTS } from "./arbitrary-config.ts";

function peersOf(lines: string, hostname: string | null = "gpu-01") {
  const text = `[node]\nid = "w"\n[kv]\nram_gib = 1\n[peers]\n${lines}\n`;
  return configOf(text, { ...NO_FACTS, hostname }).peers;
}

describe("[peers]", () => {
  test("names hosts with some transports or all, by name and by either kind of address", () => {
    const list = [
      ["a@10.0.0.2:7172/7173/7175", "a", "10.0.0.2", 7172, 7173, 7175],
      ["b@[fd00::3]:7172", "b", "fd00::3", 7172, null, null],
      ["c@gpu-3.example:/7173", "c", "gpu-3.example", null, 7173, null],
      ["d@10.0.0.4:7172//7175", "d", "10.0.0.4", 7172, null, 7175],
      ["e@10.0.0.5://7175", "e", "10.0.0.5", null, null, 7175],
    ] as const;
    const { peers } = peersOf(`peers = "${list.map(([text]) => text).join(", ")}"`);
    const named = list.map(([_, worker, host, streamPort, quicPort, rdmaPort]) => {
      return { worker, host, streamPort, quicPort, rdmaPort };
    });
    expect(peers as unknown).toEqual(named);
  });

  test("RDMA listens beside the others, and nowhere where they do not", () => {
    const rdma = (lines: string) => peersOf(lines).listenRdma as unknown;
    expect(rdma("")).toMatchObject({ host: "0.0.0.0", port: 7175 });
    expect(rdma('listen_stream = "[::1]:1"\nlisten_quic = "off"')).toMatchObject({
      host: "::1",
      port: 7175,
    });
    const free = 'listen_stream = "127.0.0.1:0"\nlisten_quic = "127.0.0.1:0"';
    expect(rdma(free)).toMatchObject({ host: "127.0.0.1", port: 0 });
    expect(rdma('listen_stream = "off"\nlisten_quic = "off"')).toBe("off");
  });

  test("where RDMA is not used its port is in nobody's way", () => {
    const mine = 'listen_stream = "0.0.0.0:7175"';
    expect(peersOf(mine).listenStream).toMatchObject({ port: 7175 });
    expect(() => peersOf(`${mine}\ntrusted_network = true`)).toThrow("7175 is also the port of");
    const lanes = 'listen_stream = "0.0.0.0:7173"\ntrusted_network = true';
    expect(() => peersOf(lanes)).toThrow("the port of its block data");
  });

  test("others reach a host where it listens, or under its name", () => {
    const listen = (host: string) => `listen_stream = "${host}:1"\nlisten_quic = "${host}:2"`;
    expect(peersOf("").advertise).toBe("gpu-01");
    expect(peersOf(listen("[::]")).advertise).toBe("gpu-01");
    expect(peersOf(listen("10.0.0.1")).advertise).toBe("10.0.0.1");
    expect(peersOf(listen("127.0.0.1")).advertise).toBe("127.0.0.1");
    expect(peersOf('listen_stream = "off"\nlisten_quic = "10.0.0.1:2"').advertise).toBe("10.0.0.1");
    expect(peersOf("", "not_a_name").advertise).toBeNull();
  });

  test("a host that announces itself must have an address to tell", () => {
    const files = 'cert_file = "/c"\nkey_file = "/k"\nca_file = "/a"';
    const nats = '[nats]\nurl = "nats://a"';
    expect(() => peersOf(`${files}\n${nats}`, "not_a_name")).toThrow("advertise");
    expect(peersOf(files, "not_a_name").advertise).toBeNull();
    expect(peersOf(`${files}\n${nats}`).advertise).toBe("gpu-01");
  });

  test("transports keep their order; auto leaves it to what is measured", () => {
    expect(peersOf('transport = "quic,stream"').transports).toEqual(["quic", "stream"]);
    expect(peersOf('transport = "auto"').transports).toBe("auto");
  });

  test("namespaces are written in either case, and each counts once", () => {
    const key = "aB".repeat(32);
    const { serveNamespaces } = peersOf(`serve_namespaces = "${key},${key.toLowerCase()}"`);
    expect(serveNamespaces).toEqual([key.toLowerCase()]);
  });
});
