"""The figures of a report as plain data, one idea a file, for any page that has chart.js."""
