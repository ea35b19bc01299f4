// The processes that environments run in, and the sandboxes that these have made.
"use strict";

/** Cores in use, from what two looks say. */
const usage = new Map();

function coresOf(worker) {
  const before = usage.get(worker.process_id);
  if (!before || now() - before.time > 1.5) {
    const cores = before && now() - before.time < 20 ? Math.max(0, (worker.cpu_seconds - before.seconds) / (now() - before.time)) : before?.cores ?? null;
    usage.set(worker.process_id, { time: now(), seconds: worker.cpu_seconds, cores });
  }
  return usage.get(worker.process_id).cores;
}

function workersTable(brief) {
  const columns = [
    { name: "number", title: "Worker", value: (row) => row.number },
    { name: "state", title: "State", text: true, value: (row) => row.state, cell: (row) => h(`span.state.${row.state}`, { title: row.reason || null }, row.state) },
    { name: "sessions", title: "Sessions", value: (row) => row.sessions },
    { name: "cpu", title: "Cores", about: "Cores in use", value: coresOf, cell: (row) => short(coresOf(row)) },
    { name: "memory", title: "Memory", value: (row) => row.memory_bytes, cell: (row) => bytes(row.memory_bytes) },
    { name: "age", title: "Age", value: (row) => row.age_seconds, cell: (row) => span(row.age_seconds) },
  ];
  if (!brief) {
    columns.splice(2, 0, { name: "environment", title: "For", text: true, value: (row) => row.environment_id || "all environments" });
    columns.push(
      { name: "sandboxes", title: "Sandboxes", value: (row) => sum(row.sandboxes.map((each) => each.live)) },
      { name: "process", title: "Process", value: (row) => row.process_id },
      { name: "reason", title: "Why", text: true, value: (row) => row.reason });
  }
  return dataTable({ label: "Workers", columns, key: (row) => row.number, empty: "No worker runs: the server is starting, or stops." });
}

function workersPage(root) {
  const workers = workersTable(false);
  const sandboxes = dataTable({
    label: "Sandboxes", sort: "worker", key: (row) => `${row.worker} ${row.backend}`,
    empty: "No sandboxes: an environment that runs what a model wrote asks for them (gymhost serve --sandbox).",
    columns: [
      { name: "worker", title: "Worker", value: (row) => row.worker }, { name: "backend", title: "Backend", text: true, value: (row) => row.backend },
      { name: "live", title: "In use", value: (row) => row.live }, { name: "spare", title: "Kept ready", value: (row) => row.spare }, { name: "making", title: "Being made", value: (row) => row.making },
      { name: "made", title: "Made", value: (row) => row.made, cell: (row) => short(row.made) }, { name: "failed", title: "Failed", value: (row) => row.failed, cell: (row) => failedCell(row.failed) },
      { name: "p50", title: "p50", about: "Half of them were made in this time", value: (row) => row.making_time.p50, cell: (row) => span(row.making_time.count ? row.making_time.p50 : null) },
      { name: "p99", title: "p99", value: (row) => row.making_time.p99, cell: (row) => span(row.making_time.count ? row.making_time.p99 : null) },
    ],
  });
  const deaths = h("p.muted");
  fill(root, h("div.page", {}, h("h1", {}, "Workers"), deaths, workers, h("h1", {}, "Sandboxes"), sandboxes));
  return () => {
    const all = environmentServer()?.workers ?? [];
    deaths.textContent = `${plural(all.length, "worker")}; ${plural(environmentServer()?.worker_deaths ?? 0, "worker")} ended without having been asked to since the server was started.`;
    workers.show(all);
    sandboxes.show(all.flatMap((worker) => worker.sandboxes.map((each) => ({ ...each, worker: worker.number }))));
  };
}
