import { describe, expect, test } from "bun:test";
import { parseServers, serverLike } from "../../src/bus/index.ts";

describe("parseServers", () => {
  test("reads hosts, ports, paths and credentials", () => {
    const one = (url: string) => {
      const { servers, login } = parseServers(url);
      return [servers[0].url, servers[0].host, servers[0].port, servers[0].tls, login];
    };
    expect(one("nats://Host")).toEqual(["nats://host:4222", "host", 4222, false, null]);
    expect(one("TLS://host:1")).toEqual(["tls://host:1", "host", 1, true, null]);
    expect(one("nats://host:80")).toEqual(["nats://host:80", "host", 80, false, null]);
    expect(one("nats://host:443")).toEqual(["nats://host:443", "host", 443, false, null]);
    expect(one("ws://host")).toEqual(["ws://host:80", "host", 80, false, null]);
    expect(one("wss://host")).toEqual(["wss://host:443", "host", 443, true, null]);
    expect(one("wss://host:80/p/q?r=s")).toEqual(["wss://host:80/p/q?r=s", "host", 80, true, null]);
    expect(one("nats://[::1]:4223")).toEqual(["nats://[::1]:4223", "::1", 4223, false, null]);
    expect(one("nats://[::1]")).toEqual(["nats://[::1]:4222", "::1", 4222, false, null]);
    const user = { kind: "user", user: "u", password: "p/w:d" } as const;
    expect(one("nats://u:p%2Fw%3Ad@h")).toEqual(["nats://h:4222", "h", 4222, false, user]);
    const token = { kind: "token", token: "t%" } as const;
    expect(one("wss://t%@h/path")).toEqual(["wss://h:443/path", "h", 443, true, token]);
  });

  test("keeps the order of several servers and one set of credentials", () => {
    const { carrier, servers, login } = parseServers("nats://u:p@a, tls://b:1 ,nats://c");
    expect(carrier).toBe("tcp");
    expect(servers.map(({ url }) => url)).toEqual(["nats://a:4222", "tls://b:1", "nats://c:4222"]);
    expect(login).toEqual({ kind: "user", user: "u", password: "p" });
  });

  test("other servers of a cluster use the scheme of the server that reported them", () => {
    const [like] = parseServers("tls://a").servers;
    expect(serverLike(like, "10.0.0.1:4223")?.url).toBe("tls://10.0.0.1:4223");
    expect(serverLike(like, "[fe80::1]:4223")?.host).toBe("fe80::1");
    expect(serverLike(like, "")).toBeNull();
    expect(serverLike(like, "a b")).toBeNull();
  });
});
