"""Prints the counters of a Darshan log as darshan-parser does, by means of PyDarshan (pip install darshan)."""
import sys

import darshan

report = darshan.DarshanReport(sys.argv[1], read_all=False)
job = report.metadata["job"]
print("# darshan log version:", job["log_ver"] if "log_ver" in job else "unknown")
print("# jobid:", job["jobid"])
print("# start_time:", job.get("start_time", job.get("start_time_sec")))
print("# nprocs:", job["nprocs"])
print("# run time:", job["run_time"])
for module in ("POSIX", "STDIO"):
    if module not in report.modules:
        continue
    report.mod_read_all_records(module)
    counters = report.records[module].to_df()["counters"]
    for _, record in counters.iterrows():
        name = report.name_records.get(int(record["id"]), "unknown")
        for counter, value in record.items():
            if counter not in ("id", "rank"):
                print(module, int(record["rank"]), int(record["id"]), counter, int(value), name, "unknown", "unknown", sep="\t")
