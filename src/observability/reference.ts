import { METRICS, type MetricSpec } from "./catalogue.ts";

function labelsOf({ labels }: MetricSpec): string {
  return Object.entries(labels)
    .map(([label, values]) => {
      const shown = values.map((value) => `\`${value}\``).join(" ");
      return `\`${label}\`: ${shown === "" ? "one value" : shown}`;
    })
    .join("; ");
}

/** The reference page of metrics, in Markdown. */
export function renderMetricsReference(): string {
  const specs: MetricSpec[] = Object.values(METRICS);
  const lines = [
    "# Metrics",
    "",
    "`GET /metrics` answers in the Prometheus text format. Labels have these values and no",
    "others, so the number of series is bounded.",
    "",
    "| name | type | meaning | labels |",
    "|---|---|---|---|",
    ...specs.map(
      (spec) => `| \`${spec.name}\` | ${spec.type} | ${spec.help} | ${labelsOf(spec)} |`,
    ),
    "",
    "## Histograms",
    "",
    ...specs
      .filter(({ buckets }) => buckets !== undefined)
      .map(({ name, buckets }) => `- \`${name}\`: buckets up to ${buckets!.join(", ")}`),
  ];
  return `${lines.join("\n")}\n`;
}
