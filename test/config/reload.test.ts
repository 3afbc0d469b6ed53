import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { diffReload, parseConfig, renderConfig, SCHEMA_KEYS } from "../../src/config/index.ts";
import { arbitraryConfig, configOf, NO_FACTS } from "./arbitrary-config.ts";

const KV = "[kv]\nram_gib = 1\n";

describe("reload", () => {
  test("tells what takes effect now from what waits for a restart", () => {
    const engine = '[engine]\nlease = "60s"\nsocket_group = "hearth"\n';
    const next = `${KV}high_water = 0.5\n${engine}[log]\nlevel = "debug"`;
    const diff = diffReload(configOf(KV), configOf(next));
    expect(diff.changed).toEqual([
      { key: "kv.high_water", from: "0.95", to: "0.5" },
      { key: "log.level", from: '"info"', to: '"debug"' },
    ]);
    expect(diff.needsRestart).toEqual([
      { key: "engine.socket_group", from: "unset", to: '"hearth"' },
      { key: "engine.lease", from: '"30s"', to: '"1m"' },
    ]);
    expect(diff.effective).toEqual(configOf(`${KV}high_water = 0.5\n[log]\nlevel = "debug"`));
    expect(Object.isFrozen(diff.effective.kv)).toBe(true);
  });

  test("the same configuration changes nothing", () => {
    const diff = diffReload(configOf(KV), configOf("[kv]\nram_gib = 1.0"));
    expect(diff).toEqual({ changed: [], needsRestart: [], effective: configOf(KV) });
  });

  test("a password that changes is noticed and not shown", () => {
    const url = (password: string) => `${KV}[nats]\nurl = "nats://u:${password}@a,nats://b"\n`;
    const diff = diffReload(configOf(url("hidden1")), configOf(url("hidden2")));
    const shown = '"nats://...@a,nats://b"';
    expect(diff.needsRestart).toEqual([{ key: "nats.url", from: shown, to: shown }]);
  });

  test("a token cannot be taken from an open listener", () => {
    const open = '[api]\nlisten = "0.0.0.0:1"\ntoken_file = "/t"\n';
    const diff = diffReload(configOf(`${KV}${open}`), configOf(KV));
    expect(diff.effective.api.tokenFile).toBe("/t");
  });

  test("from any configuration to any other, what goes on is a valid one", () => {
    fc.assert(
      fc.property(arbitraryConfig, arbitraryConfig, (old, next) => {
        const { effective, changed, needsRestart } = diffReload(old, next);
        expect(parseConfig(renderConfig(effective), "f", NO_FACTS).ok).toBe(true);
        expect(diffReload(effective, next)).toEqual({ changed: [], needsRestart, effective });
        const names = [...changed, ...needsRestart].map(({ key }) => key);
        const reloadable = (name: string) =>
          SCHEMA_KEYS.find((key) => key.name === name)?.spec.reload;
        for (const name of names) {
          expect(changed.some(({ key }) => key === name)).toBe(reloadable(name) === true);
        }
      }),
      { seed: 20_260_731, numRuns: 300 },
    );
  });
});
