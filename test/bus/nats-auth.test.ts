import { afterAll, describe, expect, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { nkeys } from "@nats-io/transport-node";
import { type Bus, type BusOptions, openBus } from "../../src/bus/index.ts";
import { describeNats, makeCertificates, NatsServer, tempDir, waitFor } from "../support/index.ts";
import { basics, type LogLine } from "./bus-bench.ts";
import { makeOperator } from "./jwt.ts";

type More = Pick<BusOptions, "credentials" | "tls">;

const folder = tempDir();
let files = 0;
function file(content: string): string {
  const path = join(folder, `secret-${++files}`);
  writeFileSync(path, content);
  return path;
}

const opened: Bus[] = [];
const lines: LogLine[] = [];
function open(url: string, more: More = {}): Bus {
  const bus = openBus({ ...basics({}, lines), url, name: "auth", ...more });
  opened.push(bus);
  return bus;
}
afterAll(() => Promise.all(opened.map((bus) => bus.close(0))));

/** Null once connected, otherwise the reason. */
async function outcome(url: string, more: More = {}): Promise<string | null> {
  const bus = open(url, more);
  await waitFor(() => bus.state.status === "connected" || bus.state.why !== "not attempted yet");
  const { why } = bus.state;
  await bus.close(0);
  return why;
}

/** Checks that the outcome is the same over both transports. */
async function outcomes(server: NatsServer, more: More = {}, login = "") {
  const urls = [server.tcpUrl, server.wsUrl].map((url) => url.replace("//", `//${login}`));
  const whys = await Promise.all(urls.map((url) => outcome(url, more)));
  return whys.map((why, at) => why?.replace(`${[server.tcpUrl, server.wsUrl][at]}: `, "") ?? null);
}

const seedOf = (key: ReturnType<typeof nkeys.createUser>) =>
  new TextDecoder().decode(key.getSeed());
const both = <T>(value: T): T[] => [value, value];
const REFUSED = both("the server rejected our credentials");
const WANTED = both("the server requires credentials");

describeNats("credentials", () => {
  test("a token, from a file or from the URL", async () => {
    await using server = await NatsServer.start({ token: "s3cret/%" });
    expect(await outcomes(server)).toEqual(WANTED);
    const token = { credentials: { tokenFile: file("s3cret/%\nsecond line\n") } };
    expect(await outcomes(server, token)).toEqual(both(null));
    expect(await outcomes(server, {}, "s3cret%2F%25@")).toEqual(both(null));
    expect(await outcomes(server, {}, "wrongtoken@")).toEqual(REFUSED);
    const wrong = { credentials: { tokenFile: file("wrongtoken") } };
    expect(await outcomes(server, wrong)).toEqual(REFUSED);
  });

  test("user and password, from a file or from the URL", async () => {
    await using server = await NatsServer.start({ user: "hearth", password: "p@ss:w0rd" });
    expect(await outcomes(server)).toEqual(WANTED);
    const pair = { credentials: { userFile: file("hearth\np@ss:w0rd\n") } };
    expect(await outcomes(server, pair)).toEqual(both(null));
    expect(await outcomes(server, {}, "hearth:p%40ss%3Aw0rd@")).toEqual(both(null));
    expect(await outcomes(server, {}, "hearth:wrongpass@")).toEqual(REFUSED);
    // A file takes precedence over credentials in the URL.
    expect(await outcomes(server, pair, "hearth:wrongpass@")).toEqual(both(null));
  });

  test("an nkey", async () => {
    const [user, other] = [nkeys.createUser(), nkeys.createUser()];
    await using server = await NatsServer.start({ nkey: user.getPublicKey() });
    expect(await outcomes(server)).toEqual(WANTED);
    const good = { credentials: { nkeyFile: file(`${seedOf(user)}\n`) } };
    expect(await outcomes(server, good)).toEqual(both(null));
    expect(await outcomes(server, { credentials: { nkeyFile: file(seedOf(other)) } })).toEqual(
      REFUSED,
    );
  });

  test("a creds file", async () => {
    const operator = makeOperator();
    await using server = await NatsServer.start({ lines: operator.lines });
    expect(await outcomes(server)).toEqual(WANTED);
    const good = { credentials: { credsFile: file(operator.userCreds()) } };
    expect(await outcomes(server, good)).toEqual(both(null));
    const stranger = { credentials: { credsFile: file(makeOperator().userCreds()) } };
    expect(await outcomes(server, stranger)).toEqual(REFUSED);
    const expired = { credentials: { credsFile: file(operator.userCreds(1_000_000_000)) } };
    expect(await outcomes(server, expired)).toEqual(REFUSED);
  });

  test("are read again after they expired while connected", async () => {
    const operator = makeOperator();
    await using server = await NatsServer.start({ lines: operator.lines });
    const soon = Math.floor(Date.now() / 1_000) + 3;
    const credsFile = file(operator.userCreds(soon));
    const bus = open(server.tcpUrl, { credentials: { credsFile } });
    expect(await bus.connected(5_000)).toBe(true);
    writeFileSync(credsFile, operator.userCreds());
    await waitFor(() => bus.state.reconnects === 1 && bus.state.status === "connected", 15_000);
    expect(JSON.stringify(lines)).toContain("our credentials have expired");
  });

  test("in wrong files are refused with a specific reason", async () => {
    const missing = join(folder, "missing");
    const junk = file("junk\n");
    const url = "nats://127.0.0.1:1";
    const cases: [More, RegExp][] = [
      [{ credentials: { tokenFile: missing } }, /missing cannot be read: ENOENT/],
      [{ credentials: { tokenFile: file("\n") } }, /has no token on its first line/],
      [
        { credentials: { userFile: junk } },
        /must have the user on its first line and the password/,
      ],
      [{ credentials: { credsFile: junk } }, /does not contain NATS user credentials/],
      [{ credentials: { nkeyFile: junk } }, /does not contain a user seed/],
      [{ credentials: { nkeyFile: file(`SU${"A".repeat(56)}`) } }, /does not contain a user seed/],
      [
        { credentials: { nkeyFile: file(seedOf(nkeys.createAccount())) } },
        /not contain a user seed/,
      ],
      [{ credentials: { nkeyFile: file("x".repeat(70_000)) } }, /larger than 64 KiB/],
      [{ tls: { caFile: missing } }, /missing cannot be read/],
      [{ tls: { certFile: junk } }, /is a certificate without a key/],
      [{ tls: { keyFile: junk } }, /is a key without a certificate/],
      [{ tls: { certFile: junk, keyFile: junk } }, /does not contain a certificate in PEM/],
    ];
    for (const [more, why] of cases) expect(await outcome(url, more)).toMatch(why);
  });

  test("never appear in the log or the state", () => {
    const reported = JSON.stringify([lines, opened.map(({ state }) => state)]);
    for (const secret of ["s3cret", "wrongtoken", "p@ss", "p%40ss", "wrongpass", "SUA", "eyJ"]) {
      expect(reported).not.toContain(secret);
    }
  });
});

describeNats("TLS", () => {
  const certificates = makeCertificates(tempDir());
  const { caFile, otherCaFile, certFile, keyFile } = certificates;

  test("accepts the configured authority and refuses another or none", async () => {
    await using server = await NatsServer.start({ tls: { caFile, certFile, keyFile } });
    expect(await outcomes(server, { tls: { caFile } })).toEqual(both(null));
    expect(await outcomes(server)).toEqual(
      both("no authority of this system signed the server's certificate; set a CA file"),
    );
    expect(await outcomes(server, { tls: { caFile: otherCaFile } })).toEqual(
      both("no authority in the CA file signed the server's certificate"),
    );
    // nats:// upgrades to TLS if the server requires it; ws:// cannot.
    const plain = server.tcpUrl.replace("tls:", "nats:");
    expect(await outcome(plain, { tls: { caFile } })).toBeNull();
    expect(await outcome(plain)).toContain("no authority of this system signed");
    expect(await outcome(server.wsUrl.replace("wss:", "ws:"))).toContain(
      "does not speak NATS over",
    );
  });

  test("refuses a certificate for another name and a server without TLS", async () => {
    const { misnamedCertFile, misnamedKeyFile } = certificates;
    const tls = { caFile, certFile: misnamedCertFile, keyFile: misnamedKeyFile };
    await using server = await NatsServer.start({ tls });
    expect(await outcomes(server, { tls: { caFile } })).toEqual(
      both("the server's certificate is not for 127.0.0.1"),
    );
    await using plain = await NatsServer.start();
    expect(await outcome(plain.tcpUrl.replace("nats:", "tls:"))).toContain("does not offer TLS");
    expect(await outcome(plain.wsUrl.replace("ws:", "wss:"))).toContain("does not offer TLS");
  });

  test("with client certificates refuses none, an untrusted one and a mismatched key", async () => {
    await using server = await NatsServer.start({
      tls: { caFile, certFile, keyFile, verify: true },
    });
    const { clientCertFile, clientKeyFile, strangerCertFile, strangerKeyFile } = certificates;
    const show = (cert: string, key: string) => ({ tls: { caFile, certFile: cert, keyFile: key } });
    expect(await outcomes(server, show(clientCertFile, clientKeyFile))).toEqual(both(null));
    expect(await outcomes(server, { tls: { caFile } })).toEqual(
      both("the server requires a client certificate"),
    );
    expect(await outcomes(server, show(strangerCertFile, strangerKeyFile))).toEqual(
      both("the server rejected our client certificate"),
    );
    expect(await outcomes(server, show(clientCertFile, strangerKeyFile))).toEqual(
      both(`${strangerKeyFile} is not the key of ${clientCertFile}`),
    );
  });

  test("survives a restart of the server", async () => {
    await using server = await NatsServer.start({ tls: { caFile, certFile, keyFile } });
    for (const url of [server.tcpUrl, server.wsUrl]) {
      const bus = open(url, { tls: { caFile } });
      expect(await bus.connected(5_000)).toBe(true);
      await server.restart();
      await waitFor(() => bus.state.reconnects === 1 && bus.state.status === "connected");
    }
  });
});

describe("a NATS address", () => {
  const problem = (url: string) => {
    try {
      void openBus({ ...basics(), url, name: "x" }).close(0);
      return null;
    } catch (thrown) {
      return (thrown as Error).message;
    }
  };
  test("that is invalid is refused immediately, without showing its credentials", () => {
    for (const [url, why] of [
      ["", "must begin with"],
      ["127.0.0.1:4222", "must begin with"],
      ["http://user:hidden@host", "must begin with"],
      ["nats://", "is not a valid URL"],
      ["nats://user:hidden@:4222", "is not a valid URL"],
      ["nats://a:99999", "is not a valid URL"],
      ["nats://a,ws://b", "mixes TCP"],
      ["nats://u:hidden@a,nats://u:other@b", "different credentials"],
      ["nats://a,", "must begin with"],
      [Array(33).fill("nats://a").join(","), "more than 32"],
    ] as const) {
      expect(problem(url)).toContain(why);
      expect(problem(url)).not.toContain("hidden");
    }
  });
});
