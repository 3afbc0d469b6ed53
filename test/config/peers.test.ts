import { describe, expect, test } from "bun:test";
import { configOf, NO_FACTS } from "./arbitrary-config.ts";

function peersOf(lines: string, hostname: string | null = "gpu-01") {
  const text = `[node]\nid = "w"\n[kv]\nram_gib = 1\n[peers]\n${lines}\n`;
  return configOf(text, { ...NO_FACTS, hostname }).peers;
}

describe("[peers]", () => {
  test("names hosts with one transport or both, by name and by either kind of address", () => {
    const list = "a@10.0.0.2:7172/7173, b@[fd00::3]:7172,c@gpu-3.example:/7173";
    expect(peersOf(`peers = "${list}"`).peers as unknown).toEqual([
      { worker: "a", host: "10.0.0.2", streamPort: 7172, quicPort: 7173 },
      { worker: "b", host: "fd00::3", streamPort: 7172, quicPort: null },
      { worker: "c", host: "gpu-3.example", streamPort: null, quicPort: 7173 },
    ]);
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
    expect(peersOf(`${files}\nannounce = "off"\n${nats}`, "not_a_name").announceMs).toBe(0);
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
