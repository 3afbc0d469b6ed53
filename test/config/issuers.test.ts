import { describe, expect, test } from "bun:test";
import { nkeys } from "@nats-io/transport-node";
import { configOf, NO_FACTS } from "./arbitrary-config.ts";

const control = (issuers: string) =>
  configOf(`[node]\nid = "w"\n[kv]\nram_gib = 1\n[control]\nissuers = "${issuers}"\n`, NO_FACTS)
    .control.issuers;
const socket = (lines: string) =>
  configOf(`[node]\nid = "w"\n[kv]\nram_gib = 1\n${lines}\n`, NO_FACTS).api.socket;

describe("control.issuers", () => {
  test("names issuers with a role and a proof", () => {
    const key = nkeys.createUser().getPublicKey();
    expect(control(` router-1 operate subject,ops   purge ${key} `) as unknown).toEqual([
      { name: "router-1", role: "operate", key: null },
      { name: "ops", role: "purge", key },
    ]);
    expect(control("none")).toEqual([]);
  });

  const key = nkeys.createUser().getPublicKey();
  const wrong: [string, string][] = [
    ["", "three words"],
    ["router-1", "three words"],
    ["router-1 purge subject extra", "three words"],
    ["router.1 purge subject", "router.1"],
    ["* purge subject", "*"],
    ["a read subject", "not operate or purge"],
    ["a purge Subject", "neither"],
    [`a purge ${key.slice(0, -1)}`, "neither"],
    [`a purge ${key.slice(0, -1)}${key.endsWith("2") ? "3" : "2"}`, "neither"],
    [`a purge ${nkeys.createAccount().getPublicKey()}`, "neither"],
    ["a purge subject, a operate subject", "a twice"],
  ];
  test.each(wrong)("%p is refused", (text, words) => {
    expect(() => control(text)).toThrow(words);
  });

  test("takes no seed, which would be a secret in a file that many read", () => {
    const seed = new TextDecoder().decode(nkeys.createUser().getSeed());
    expect(() => control(`ops purge ${seed}`)).toThrow();
  });
});

describe("api.socket", () => {
  test("lies beside the engine socket of the usual name, else it is off", () => {
    expect(socket("")).toBe("/run/hearth/api.sock");
    expect(socket('[engine]\nsocket = "/tmp/a/engine.sock"')).toBe("/tmp/a/api.sock");
    expect(socket('[engine]\nsocket = "/tmp/a/e.sock"')).toBeNull();
    expect(socket('[api]\nsocket = "off"')).toBeNull();
    expect(socket('[api]\nsocket = "/tmp/x"')).toBe("/tmp/x");
  });
});

test("nothing without credentials may remove blocks by default", () => {
  const config = configOf('[node]\nid = "w"\n[kv]\nram_gib = 1\n', NO_FACTS);
  expect(config.api.loopbackRole).toBe("operate");
  expect(config.api.socketRole).toBe("operate");
  expect(config.nats.role).toBe("operate");
  expect(config.engine.commandRole).toBe("operate");
});
