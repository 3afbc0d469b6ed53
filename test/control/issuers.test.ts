import { describe, expect, test } from "bun:test";
import { nkeys } from "@nats-io/transport-node";
import { JSON_TYPE, type Receipt, type Sender, signCommand } from "../../src/control/index.ts";
import { type NkeyUser, publicUserKey, stringifyJson, userOfSeed } from "../../src/core/index.ts";
import { FakeLedger, PlaneKit } from "./plane-kit.ts";

const PIN = { type: "Cache", block_hashes: [1], pin: true };
const FLUSH = { type: "Flush" };
const NATS = { via: "nats", name: "nats", role: "operate", roleKey: "nats.role" } as const;
/** As a server lets only one user publish. */
const ON_SUBJECT = { ...NATS, name: "router-1", subjectIssuer: "router-1" } as const;

const newKey = () => userOfSeed(new TextDecoder().decode(nkeys.createUser().getSeed()))!;
const bound = (name: string, role: "operate" | "purge", key: NkeyUser | null) => ({
  ...{ name, role },
  key: key === null ? null : publicUserKey(key.publicKey),
});

/** Seconds since 1970 on the plane's clock. */
const nowOf = ({ clock }: PlaneKit) => Math.floor(clock.wallMs() / 1_000);

interface SignOptions {
  readonly worker?: string;
  readonly sender?: Partial<Sender>;
  /** Replacements for the signed content. */
  readonly sent?: object;
  readonly spelled?: (signature: string) => string;
}

async function sendSigned(
  kit: PlaneKit,
  key: NkeyUser,
  command: object,
  { worker = "w1", sender = NATS, sent = command, spelled = (text) => text }: SignOptions = {},
): Promise<Receipt> {
  const bytes = (value: object) => new TextEncoder().encode(stringifyJson(value));
  const signature = spelled(signCommand(key, worker, JSON_TYPE, bytes(command)));
  const whole = { from: "test", broadcast: false, ...NATS, ...sender };
  return kit.plane.submit(bytes(sent), null, whole, { signature });
}

const wordOf = ({ status, reason }: Receipt) =>
  status === "rejected" ? reason!.split(":")[0]! : status;

describe("a command that removes blocks", () => {
  const removing = [
    FLUSH,
    { type: "Prune", after_block_hash: 1 },
    { type: "RevokeLease", lease_id: "l" },
    { type: "Think", block_hashes: [1], transient: false },
  ];

  test("is refused without a grant, and the receipt names the key to set", async () => {
    const kit = new PlaneKit();
    for (const command of removing) {
      const { reason } = await kit.send(command, NATS);
      expect(reason).toStartWith(`forbidden: ${command.type} needs the role purge`);
      expect(reason).toContain('nats.role gives operate: set nats.role = "purge"');
      expect(reason).toContain("control.issuers");
    }
    const engine = { ...NATS, via: "local", roleKey: "engine.command_role" } as const;
    expect((await kit.send(FLUSH, engine)).reason).toContain('engine.command_role = "purge"');
    const local = { ...NATS, via: "http", roleKey: "api.loopback_role" } as const;
    expect((await kit.send(FLUSH, local)).reason).toContain("ask over api.socket");
    expect(kit.lifecycle.calls).toEqual([]);
    expect(await kit.word(PIN, NATS)).toBe("ok");
  });

  test("is carried out with nats.role, on the issuer's own subject, or signed", async () => {
    const kit = new PlaneKit();
    const key = newKey();
    kit.issuers = [bound("router-1", "purge", null), bound("ops", "purge", key)];
    for (const command of removing) {
      expect(await kit.word(command, { ...NATS, role: "purge" })).not.toBe("forbidden");
      expect(await kit.word(command, ON_SUBJECT)).not.toBe("forbidden");
      const id = `c-${command.type}`;
      const signed = { ...command, id, issuer: "ops", not_after: nowOf(kit) + 60 };
      expect(wordOf(await sendSigned(kit, key, signed))).not.toBe("forbidden");
    }
    expect(kit.lifecycle.calls.length).toBeGreaterThanOrEqual(3 * 3);
  });

  test("needs the role purge of the issuer's entry as well", async () => {
    const kit = new PlaneKit();
    kit.issuers = [bound("router-1", "operate", null)];
    expect(await kit.word(PIN, ON_SUBJECT)).toBe("ok");
    expect(await kit.word(FLUSH, ON_SUBJECT)).toBe("forbidden");
  });
});

describe("an issuer that must prove its name", () => {
  test("is refused on an unauthenticated subject, and fences nothing there", async () => {
    const kit = new PlaneKit();
    kit.issuers = [bound("router-1", "operate", null), bound("ops", "purge", newKey())];
    for (const issuer of ["router-1", "ops"]) {
      const { reason } = await kit.send({ ...PIN, issuer, epoch: 2n ** 40n }, NATS);
      expect(reason).toStartWith(`unproven: ${issuer} must prove its name (control.issuers)`);
    }
    expect(await kit.word({ ...PIN, epoch: 1 }, ON_SUBJECT)).toBe("ok");
    // The engine plane and tokens have their own accounts.
    const token = { ...NATS, via: "http", account: "grafana" } as const;
    expect(await kit.word({ ...PIN, issuer: "router-1", epoch: 99 }, token)).toBe("ok");
    expect(await kit.word({ ...PIN, epoch: 2 }, ON_SUBJECT)).toBe("ok");
  });

  test("cannot use another name on its subject", async () => {
    const kit = new PlaneKit();
    kit.issuers = [bound("router-1", "purge", null), bound("router-2", "purge", null)];
    expect(await kit.word({ ...FLUSH, issuer: "router-2" }, ON_SUBJECT)).toBe("unproven");
    expect((await kit.send({ ...PIN, issuer: "router-1" }, ON_SUBJECT)).issuer).toBe("router-1");
    // An unlisted subject proves nothing: the server may let every user publish there.
    const stranger = { ...NATS, name: "router-3", subjectIssuer: "router-3" };
    expect(await kit.word(FLUSH, stranger)).toBe("forbidden");
    expect(await kit.word(PIN, stranger)).toBe("ok");
  });

  test("stays bound over restarts, until it is unfenced", async () => {
    const ledger = new FakeLedger();
    const kit = new PlaneKit(ledger);
    kit.issuers = [bound("router-1", "operate", null)];
    expect(await kit.word({ ...PIN, id: "a", epoch: 5 }, ON_SUBJECT)).toBe("ok");
    const after = new PlaneKit(ledger.reopened());
    after.issuers = [bound("router-1", "operate", null)];
    expect(await after.word({ ...PIN, epoch: 4 }, ON_SUBJECT)).toBe("fenced");
    // Also after the operator removed it from the list.
    after.issuers = [];
    const { reason } = await after.send({ ...PIN, issuer: "router-1" }, NATS);
    expect(reason).toContain("hearth ctl unfence router-1");
    expect(after.plane.unfence("router-1", { ...NATS, from: "test", broadcast: false })).toBe(1);
    expect(await after.word({ ...PIN, issuer: "router-1", epoch: 1 }, NATS)).toBe("ok");
    expect(after.audited.find(({ type }) => type === "Unfence")).toMatchObject({
      ...{ names: ["router-1"], status: "ok" },
    });
  });

  test("is bound by its first command, also without an epoch", async () => {
    const ledger = new FakeLedger();
    const kit = new PlaneKit(ledger);
    kit.issuers = [bound("router-1", "operate", null)];
    expect(await kit.word(PIN, ON_SUBJECT)).toBe("ok");
    const after = new PlaneKit(ledger.reopened());
    expect(await after.word({ ...PIN, issuer: "router-1" }, NATS)).toBe("unproven");
  });

  test("is not evicted by claimed names", async () => {
    const ledger = new FakeLedger();
    const kit = new PlaneKit(ledger);
    kit.limits = { ...kit.limits, commandsPerSecond: 1e6, commandsBurst: 1e6 };
    kit.issuers = [bound("router-1", "operate", null)];
    expect(await kit.word({ ...PIN, epoch: 5 }, ON_SUBJECT)).toBe("ok");
    const key = "issuer issuer router-1\x01router-1";
    ledger.committed.delete(key);
    for (let nth = 0; nth < 4_200; nth++) {
      await kit.send({ ...PIN, issuer: `x${nth}`, epoch: 1 }, NATS);
    }
    expect(await kit.word({ ...PIN, epoch: 4 }, ON_SUBJECT)).toBe("fenced");
    // The ledger on disk keeps the latest rows: this one was refreshed repeatedly.
    expect(ledger.committed.get(key)).toMatchObject({ epoch: 5n });
  });
});

describe("an epoch or a number", () => {
  const year2026Ms = Date.UTC(2026, 5, 1);

  test("without room for later ones is refused", async () => {
    const kit = new PlaneKit();
    kit.clock.jumpWall(year2026Ms - kit.clock.wallMs());
    const refused = [9007199254740991n, 2n ** 64n - 1n, 2n ** 63n, 2n ** 41n, 9n * 10n ** 12n];
    for (const number of refused) {
      expect(await kit.word({ ...PIN, issuer: "router-1", epoch: number })).toBe("implausible");
      expect(await kit.word({ ...PIN, issuer: "router-1", seq: number })).toBe("implausible");
    }
    expect(await kit.word({ ...PIN, issuer: "router-1", epoch: 1 })).toBe("ok");
  });

  test("may be a counter or a time in milliseconds, microseconds or nanoseconds", async () => {
    const kit = new PlaneKit();
    kit.clock.jumpWall(year2026Ms - kit.clock.wallMs());
    const now = BigInt(year2026Ms);
    const times = [now / 1_000n, now, now * 1_000n, now * 1_000_000n + 86_400_000n * 1_000_000n];
    for (const epoch of [0n, 7n, 2n ** 40n, ...times.slice(1)]) {
      expect(await kit.word({ ...PIN, issuer: "router-1", epoch })).toBe("ok");
    }
    expect(await kit.word({ ...PIN, issuer: "seconds", epoch: times[0] })).toBe("ok");
    const tooLate = now * 1_000_000n + 86_400_001n * 1_000_000n;
    expect(await kit.word({ ...PIN, issuer: "router-1", epoch: tooLate })).toBe("implausible");
  });
});

describe("a signed command", () => {
  const stage = () => {
    const kit = new PlaneKit();
    const key = newKey();
    kit.issuers = [bound("ops", "purge", key)];
    const command = { ...FLUSH, id: "c", issuer: "ops", not_after: nowOf(kit) + 60 };
    return { kit, key, command };
  };

  test("is carried out once, however often and late it is repeated", async () => {
    const { kit, key, command } = stage();
    expect(await sendSigned(kit, key, command)).toMatchObject({ status: "ok", issuer: "ops" });
    expect(await sendSigned(kit, key, command)).toMatchObject({ duplicate: true });
    // Other commands evict its receipt from the memory.
    kit.limits = { ...kit.limits, commandsPerSecond: 1e6, commandsBurst: 1e6 };
    for (let nth = 0; nth < 65_600; nth++) {
      await kit.send({ ...PIN, id: `n${nth}`, issuer: "x" }, { role: "operate" });
      if (nth % 5_000 === 0) kit.clock.advance(10);
    }
    kit.clock.advance(10_000);
    expect(wordOf(await sendSigned(kit, key, command))).toBe("replayed");
    kit.clock.advance(60_000);
    expect(wordOf(await sendSigned(kit, key, command))).toBe("expired");
    expect(
      kit.lifecycle.calls.filter((call) => JSON.stringify(call).includes("flush")),
    ).toHaveLength(1);
  });

  test("is refused if a byte, the worker, the media type or the key differs", async () => {
    const { kit, key, command } = stage();
    const refused: [string, Promise<Receipt>][] = [
      ["another body", sendSigned(kit, key, command, { sent: { ...command, id: "d" } })],
      ["another worker", sendSigned(kit, key, command, { worker: "w2" })],
      ["all workers", sendSigned(kit, key, command, { worker: "*" })],
      ["one, by broadcast", sendSigned(kit, key, command, { sender: { broadcast: true } })],
      ["another key", sendSigned(kit, newKey(), command)],
      ["another issuer", sendSigned(kit, key, { ...command, issuer: "nobody" })],
      ["another spelling", sendSigned(kit, key, command, { spelled: (text) => `${text}=` })],
    ];
    const hostile = ["", " ", "\0", "a".repeat(100_000), "\u{1f600}", "%00", "null", "[]"];
    for (const text of hostile) {
      refused.push([
        `the text ${text.slice(0, 9)}`,
        sendSigned(kit, key, command, { spelled: () => text }),
      ]);
    }
    for (const [what, receipt] of refused) {
      expect([what, wordOf(await receipt)]).toEqual([what, "unproven"]);
    }
    expect(kit.lifecycle.calls).toEqual([]);
    expect(wordOf(await sendSigned(kit, key, command))).toBe("ok");
  });

  test("needs an id, an issuer and a near not_after", async () => {
    const { kit, key, command } = stage();
    for (const member of ["id", "issuer", "not_after"]) {
      const { [member]: _, ...without } = command as Record<string, unknown>;
      const sender = { ...NATS, name: "ops" };
      const { reason } = await sendSigned(kit, key, without, { sender });
      expect(reason).toContain("requires id, issuer and not_after");
    }
    const far = { ...command, not_after: nowOf(kit) + 700 };
    expect((await sendSigned(kit, key, far)).reason).toContain("compare the clocks");
    // A clock one minute behind is tolerated.
    const near = { ...command, not_after: nowOf(kit) + 655 };
    expect(wordOf(await sendSigned(kit, key, near))).toBe("ok");
    const over = { ...command, id: "e", not_after: nowOf(kit) - 1 };
    expect(wordOf(await sendSigned(kit, key, over))).toBe("expired");
  });

  test("by broadcast is signed for all workers, and restricted like any broadcast", async () => {
    const { kit, key, command } = stage();
    const sender = { broadcast: true };
    const prune = { ...command, type: "Prune", after_block_hash: 1 };
    expect(wordOf(await sendSigned(kit, key, prune, { worker: "*", sender }))).not.toBe("unproven");
    const flush = { ...command, id: "f" };
    const receipt = await sendSigned(kit, key, flush, { worker: "*", sender });
    expect(wordOf(receipt)).toBe("broadcast_refused");
  });

  test("has the greater of its own role and the transport's", async () => {
    const { kit, key, command } = stage();
    kit.issuers = [bound("ops", "operate", key)];
    expect(wordOf(await sendSigned(kit, key, command))).toBe("forbidden");
    const sender = { ...NATS, via: "http", role: "purge" } as const;
    expect(wordOf(await sendSigned(kit, key, command, { sender }))).toBe("ok");
  });
});
