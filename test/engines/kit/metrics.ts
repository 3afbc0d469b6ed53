import { round } from "./compare.ts";

/** Samples of a Prometheus text page. */
export class Metrics {
  readonly #samples: readonly (readonly [string, string, number])[];

  constructor(text: string) {
    this.#samples = text
      .split("\n")
      .filter((line) => line !== "" && !line.startsWith("#"))
      .map((line) => {
        const [, name = "", labels = "", value = ""] = SAMPLE.exec(line) ?? [];
        return [name, labels, Number(value)] as const;
      });
  }

  /** Sum of the samples with this name whose labels contain `labels`; 0 without any. */
  sum(name: string, labels = ""): number {
    return this.#samples
      .filter(([found, place]) => found === name && place.includes(labels))
      .reduce((sum, [, , value]) => sum + value, 0);
  }

  /** All samples whose name starts with `prefix`, `name{labels}` to value. */
  starting(prefix: string): Record<string, number> {
    const found = this.#samples.filter(([name]) => name.startsWith(prefix));
    return Object.fromEntries(found.map(([name, labels, value]) => [name + labels, value]));
  }
}

/** Counters, sums and gauges of the connector, without vLLM's own labels and buckets. */
export function connectorFigures(metrics: Metrics): Record<string, number> {
  const found = Object.entries(metrics.starting(CONNECTOR))
    .filter(([name]) => !/_(created|bucket)(\{|$)/.test(name))
    .map(([name, value]) => {
      const labels = name.replace(/(engine|model_name)="[^"]*",?/g, "").replace(/,?\}$/, "}");
      return [labels.replace(CONNECTOR, "").replace("{}", ""), round(value)] as const;
    });
  return Object.fromEntries(found);
}

const CONNECTOR = "vllm:hearth_";
const SAMPLE = /^([^\s{]+)(\{.*\})? (\S+)/;

export async function readMetrics(url: string): Promise<Metrics> {
  const answer = await fetch(url, { keepalive: false });
  if (!answer.ok) throw new Error(`${url}: status ${answer.status}`);
  return new Metrics(await answer.text());
}
