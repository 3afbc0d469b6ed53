import { describe, expect, test } from "bun:test";
import { generateKeyPairSync } from "node:crypto";
import { chmodSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { HearthError, systemClock, type WorkerId } from "../../../src/core/index.ts";
import {
  type CertificateFiles,
  generateKey,
  openTrust,
  readCredentials,
  type TrustNews,
} from "../../../src/peers/index.ts";
import { BAD_CREDENTIALS } from "../../certs/bad-credentials.ts";
import { forged } from "../../certs/forge.ts";
import {
  ManualClock,
  makeCluster,
  noteSkip,
  tempDir,
  validFor,
  waitFor,
  writeCredentials,
} from "../../support/index.ts";

const A = "node-a" as WorkerId;
const DAY_MS = 86_400_000;
const NAME = { cluster: "test", worker: A };
const folder = tempDir();
const cluster = makeCluster(folder);
let folders = 0;

function freshFiles(): CertificateFiles {
  return writeCredentials(join(folder, `f${folders++}`), cluster.host(A));
}

function reading(files: CertificateFiles) {
  return readCredentials(files, NAME, systemClock.wallMs());
}

async function refusalOf(files: CertificateFiles): Promise<HearthError> {
  try {
    await reading(files);
  } catch (thrown) {
    if (thrown instanceof HearthError) return thrown;
    throw thrown;
  }
  throw new Error("nothing was refused");
}

/** Text that must not appear in a message or a log. */
function secretsOf(key: string): string[] {
  return key.split("\n").filter((line) => line.length > 20 && !line.startsWith("-----"));
}

describe("certificate files", () => {
  test("are read", async () => {
    const files = freshFiles();
    const { credentials, warnings } = await reading(files);
    expect(credentials).toMatchObject({ ...NAME, key: readFileSync(files.keyFile, "utf8") });
    expect(credentials.notAfterMs).toBeWithin(
      systemClock.wallMs() + 29 * DAY_MS,
      systemClock.wallMs() + 31 * DAY_MS,
    );
    expect(warnings).toEqual([]);
  });

  test("cause a warning for a readable key, and for a key among the authorities", async () => {
    const files = freshFiles();
    chmodSync(files.keyFile, 0o644);
    writeFileSync(files.caFile, cluster.authority.certificate + cluster.authority.key);
    const { warnings } = await reading(files);
    expect(warnings).toEqual([
      `${files.keyFile} can be read by every user of this host: chmod o-r ${files.keyFile}`,
      `${files.caFile} contains a private key, which no agent needs: remove it`,
    ]);
  });

  test.each(["rsa:2048", "ec", "ed25519"])("of another authority, with keys %s", async (kind) => {
    if (Bun.which("openssl") === null) return noteSkip("openssl", "openssl is not installed");
    const home = join(folder, `openssl-${kind.replace(":", "-")}`);
    mkdirSync(home);
    const openssl = (...words: string[]) => {
      const { exitCode, stderr } = Bun.spawnSync(["openssl", ...words], { cwd: home });
      expect(`${exitCode} ${stderr}`).toStartWith("0 ");
    };
    const curve = kind === "ec" ? ["-pkeyopt", "ec_paramgen_curve:secp384r1"] : [];
    const request = ["req", "-newkey", kind, ...curve, "-nodes", "-subj"];
    openssl(...request, "/CN=Our CA", "-x509", "-keyout", "ca.key", "-out", "ca.crt");
    openssl(...request, "/CN=a", "-keyout", "host.key", "-out", "csr");
    const names = "subjectAltName=URI:spiffe://test/hearth/node-a,DNS:node-a";
    writeFileSync(join(home, "ext"), `${names}\nextendedKeyUsage=serverAuth,clientAuth\n`);
    const sign = ["x509", "-req", "-in", "csr", "-CA", "ca.crt", "-CAkey", "ca.key"];
    openssl(...sign, "-CAcreateserial", "-out", "host.crt", "-extfile", "ext", "-days", "9");
    const [certFile, keyFile, caFile] = ["host.crt", "host.key", "ca.crt"].map((name) =>
      join(home, name),
    );
    const files = { certFile: certFile!, keyFile: keyFile!, caFile: caFile! };
    expect((await reading(files)).credentials.worker).toBe(A);
  });

  const GOOD_NAME = "URI:spiffe://test/hearth/node-a";
  const BOTH_USES = "extendedKeyUsage=serverAuth,clientAuth";
  test.each<[string, string[], RegExp, number?]>([
    ["none", [`subjectAltName=${GOOD_NAME}`, BOTH_USES], /^accepted$/],
    ["no names", [BOTH_USES], /it has no URI name/],
    [
      "another worker",
      ["subjectAltName=URI:spiffe://test/hearth/b", BOTH_USES],
      /names the worker b/,
    ],
    [
      "another cluster",
      ["subjectAltName=URI:spiffe://c/hearth/node-a", BOTH_USES],
      /the cluster c/,
    ],
    ["two names", [`subjectAltName=${GOOD_NAME},${GOOD_NAME}`, BOTH_USES], /has 2 URI names/],
    ["no extended key usage", [`subjectAltName=${GOOD_NAME}`], /not made for servers/],
    [
      "for servers only",
      [`subjectAltName=${GOOD_NAME}`, "extendedKeyUsage=serverAuth"],
      /not made for clients/,
    ],
    [
      "key not for signatures",
      [`subjectAltName=${GOOD_NAME}`, BOTH_USES, "keyUsage=critical,keyEncipherment"],
      /its key may not be used for signatures/,
    ],
    [
      "an authority",
      [`subjectAltName=${GOOD_NAME}`, BOTH_USES, "basicConstraints=critical,CA:TRUE"],
      /it is an authority's certificate/,
    ],
    [
      "an unknown critical extension",
      [`subjectAltName=${GOOD_NAME}`, BOTH_USES, "1.2.3.4=critical,ASN1:NULL"],
      /unknown critical extension 1.2.3.4/,
    ],
    ["expired", [`subjectAltName=${GOOD_NAME}`, BOTH_USES], /it expired at 20/, -1],
  ])("issued by openssl with an error: %s", async (what, extensions, words, days = 9) => {
    if (Bun.which("openssl") === null) return noteSkip("openssl", "openssl is not installed");
    const home = join(folder, `openssl-wrong-${what.replaceAll(" ", "-")}`);
    mkdirSync(home);
    const openssl = (...words: string[]) => {
      const { exitCode, stderr } = Bun.spawnSync(["openssl", ...words], { cwd: home });
      expect(`${exitCode} ${stderr}`).toStartWith("0 ");
    };
    writeFileSync(join(home, "ca.crt"), cluster.authority.certificate);
    writeFileSync(join(home, "ca.key"), cluster.authority.key);
    const curve = ["-pkeyopt", "ec_paramgen_curve:P-256"];
    const request = ["req", "-newkey", "ec", ...curve, "-nodes", "-subj", "/CN=a"];
    openssl(...request, "-keyout", "host.key", "-out", "csr");
    writeFileSync(join(home, "ext"), `${extensions.join("\n")}\n`);
    const sign = ["x509", "-req", "-in", "csr", "-CA", "ca.crt", "-CAkey", "ca.key"];
    const until = ["-CAcreateserial", "-days", String(days)];
    openssl(...sign, ...until, "-out", "host.crt", "-extfile", "ext");
    const files = {
      certFile: join(home, "host.crt"),
      keyFile: join(home, "host.key"),
      caFile: join(home, "ca.crt"),
    };
    const verdict = await reading(files).then(
      () => "accepted",
      (thrown: HearthError) => thrown.text,
    );
    expect(verdict).toMatch(words);
  });

  const WRONG: [string, (files: CertificateFiles) => void, RegExp][] = [
    ["no certificate", ({ certFile }) => rmSync(certFile), /cannot read .*host.crt: ENOENT/],
    ["no key", ({ keyFile }) => rmSync(keyFile), /cannot read .*host.key: ENOENT/],
    ["no authorities", ({ caFile }) => rmSync(caFile), /cannot read .*ca.crt: ENOENT/],
    [
      "another thing than a certificate",
      ({ certFile, keyFile }) => writeFileSync(certFile, readFileSync(keyFile)),
      /host.crt contains no PEM certificate/,
    ],
    [
      "another thing than a key",
      ({ certFile, keyFile }) => writeFileSync(keyFile, readFileSync(certFile)),
      /host.key contains no readable PEM private key/,
    ],
    [
      "a certificate cut short",
      ({ certFile }) =>
        writeFileSync(certFile, "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"),
      /host.crt: certificate 1 cannot be read: it is not the DER encoding of a Certificate/,
    ],
    [
      "the key of another",
      ({ keyFile }) => writeFileSync(keyFile, generateKey()),
      /host.key is not the key of .*host.crt: let peers.key_file/,
    ],
    [
      "a host as an authority",
      ({ certFile, caFile }) => writeFileSync(caFile, readFileSync(certFile)),
      /ca.crt: certificate 1 is not an authority's/,
    ],
    [
      "authorities of others",
      ({ caFile }) => writeFileSync(caFile, makeCluster().authority.certificate),
      /host.crt is not a certificate of .* node-a .*: no authority of this cluster signed it/,
    ],
    [
      "far too much",
      ({ certFile }) => writeFileSync(certFile, Buffer.alloc(2 << 20, "x")),
      /cannot read .*host.crt: it is longer than/,
    ],
  ];
  test.each(WRONG)("are refused with a reason: %s", async (_what, spoil, words) => {
    const files = freshFiles();
    const secrets = secretsOf(readFileSync(files.keyFile, "utf8"));
    spoil(files);
    const { code, text, fix } = await refusalOf(files);
    expect(code).toBe("CONFIG_INVALID");
    expect(text).toMatch(words);
    expect(fix).toBeString();
    for (const secret of secrets) expect(text).not.toContain(secret);
  });

  test("are refused if TLS does not support the key's type", async () => {
    const privateKeyEncoding = { type: "pkcs8", format: "pem" } as const;
    const publicKeyEncoding = { type: "spki", format: "pem" } as const;
    const { privateKey: key } = generateKeyPairSync("ec", {
      namedCurve: "P-224",
      ...{ privateKeyEncoding, publicKeyEncoding },
    });
    const files = writeCredentials(join(folder, "p224"), forged(cluster, A, { key }));
    const { code, text } = await refusalOf(files);
    expect(code).toBe("CONFIG_INVALID");
    expect(text).toMatch(/host.crt and its key have a type that TLS does not support here/);
    for (const secret of secretsOf(key)) expect(text).not.toContain(secret);
  });

  test("are refused for the same reasons that peers would give", async () => {
    const seen = BAD_CREDENTIALS.filter(({ verdict }) => verdict !== null);
    for (const bad of seen) {
      const files = writeCredentials(join(folder, "bad"), bad.make(cluster, A));
      const { text } = await refusalOf(files);
      expect(text).toMatch(bad.verdict!);
    }
    expect(seen.length).toBeGreaterThan(40);
  });
});

describe("watched certificates", () => {
  async function watched(files = freshFiles()) {
    const clock = new ManualClock(systemClock.wallMs());
    const news: TrustNews[] = [];
    const options = { files, ...NAME, clock, tell: (one: TrustNews) => news.push(one) };
    const trust = await openTrust(options);
    let changes = 0;
    trust.onChange(() => changes++);
    return { clock, news, trust, files, changes: () => changes };
  }

  test("are used after they changed and settled", async () => {
    const { clock, news, trust, files, changes } = await watched();
    using _trust = trust;
    const [before, next] = [trust.credentials, cluster.host(A)];
    writeFileSync(files.certFile, next.certificates);
    await clock.advanceAsync(5_000);
    writeFileSync(files.keyFile, next.key);
    await waitFor(async () => {
      await clock.advanceAsync(5_000);
      return trust.credentials !== before;
    });
    expect(trust.credentials.certificates).toBe(next.certificates);
    expect(news).toEqual([{ kind: "loaded", notAfterMs: trust.credentials.notAfterMs }]);
    expect(changes()).toBe(1);
  });

  test("stay in use if the new ones are invalid, which is reported once", async () => {
    const { clock, news, trust, files, changes } = await watched();
    using _trust = trust;
    const before = trust.credentials;
    writeFileSync(files.keyFile, generateKey());
    await waitFor(async () => {
      await clock.advanceAsync(5_000);
      return news.length > 0;
    });
    await clock.advanceAsync(60_000, 5_000);
    expect(news.map(({ kind }) => kind)).toEqual(["refused"]);
    expect(await trust.reload()).toMatchObject({ ok: false });
    expect([trust.credentials, changes()]).toEqual([before, 0]);
    writeFileSync(files.keyFile, before.key);
    expect(await trust.reload()).toEqual({ ok: true, isChanged: false });
    expect(news.map(({ kind }) => kind)).toEqual(["refused", "refused", "loaded"]);
    expect(changes()).toBe(0);
  });

  test("are reloaded on demand, one reload after the other", async () => {
    const { trust, files } = await watched();
    using _trust = trust;
    const next = cluster.host(A);
    writeFileSync(files.certFile, next.certificates);
    writeFileSync(files.keyFile, next.key);
    const results = await Promise.all([trust.reload(), trust.reload()]);
    expect(results.map((result) => result.ok && result.isChanged)).toEqual([true, false]);
  });

  test("of a removed authority are no longer accepted", async () => {
    const { trust, files } = await watched();
    using _trust = trust;
    const later = makeCluster(folder);
    const stranger = Buffer.from(cluster.host("b").certificates);
    const der = Uint8Array.fromBase64(stranger.toString().split("-----")[2]!);
    expect(trust.authorize(der, null).ok).toBe(true);
    writeCredentials(join(files.certFile, ".."), later.host(A));
    expect(await trust.reload()).toEqual({ ok: true, isChanged: true });
    expect(trust.authorize(der, null).ok).toBe(false);
  });

  test("tell 14 days before they end, and when they have", async () => {
    const { clock, news, trust, files } = await watched();
    using _trust = trust;
    const { notAfterMs } = trust.credentials;
    await clock.advanceAsync(15_000, 5_000);
    expect(trust.expiry).toBe("far");
    clock.jumpWall(notAfterMs - clock.wallMs() - 13 * DAY_MS);
    await clock.advanceAsync(15_000, 5_000);
    clock.jumpWall(13 * DAY_MS);
    await clock.advanceAsync(15_000, 5_000);
    expect(news).toEqual([
      { kind: "expiry", state: "soon", notAfterMs },
      { kind: "expiry", state: "late", notAfterMs },
    ]);
    const renewed = forged(cluster, A, { validity: { ...validFor(55) } });
    writeCredentials(join(files.certFile, ".."), renewed);
    expect(await trust.reload()).toMatchObject({ ok: true });
    expect(trust.expiry).toBe("far");
  });

  test("leave no timer behind", async () => {
    const { clock, trust } = await watched();
    expect(clock.pending).toBeGreaterThan(0);
    trust[Symbol.dispose]();
    expect(clock.pending).toBe(0);
  });
});
